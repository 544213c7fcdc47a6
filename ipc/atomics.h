/* Bounds-checked access to words for the functions of the module. */
#ifndef HYBRIDGEN_ATOMICS_H
#define HYBRIDGEN_ATOMICS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ipc/wait.h"

/* The word at `offset` of a buffer; NULL with ValueError when it is outside or not aligned.  The
 * caller releases `view` in every case but NULL. */
uint64_t *hg_word(PyObject *buffer, PyObject *offset, int is_writable, Py_buffer *view);

#endif
