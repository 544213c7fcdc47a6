/* layout() of the module: name -> offset or size. */
#ifndef HYBRIDGEN_LAYOUT_TABLE_H
#define HYBRIDGEN_LAYOUT_TABLE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "ipc/record_ring.h"

PyObject *hg_layout(PyObject *module, PyObject *unused);

#endif
