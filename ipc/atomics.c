/* See atomics.h. */
#include "ipc/atomics.h"

uint64_t *hg_word(PyObject *buffer, PyObject *offset, int is_writable, Py_buffer *view) {
    const Py_ssize_t at = PyLong_AsSsize_t(offset);
    if (at == -1 && PyErr_Occurred())
        return NULL;
    if (PyObject_GetBuffer(buffer, view, is_writable ? PyBUF_WRITABLE : PyBUF_SIMPLE) != 0)
        return NULL;
    uint8_t *address = (uint8_t *)view->buf + at;
    if (at < 0 || at > view->len - (Py_ssize_t)sizeof(uint64_t)) {
        PyErr_Format(PyExc_ValueError, "word at byte %zd is outside a buffer of %zd bytes", at,
                     view->len);
    } else if ((uintptr_t)address % sizeof(uint64_t) != 0) {
        PyErr_Format(PyExc_ValueError, "word at byte %zd is not 8-byte aligned", at);
    } else {
        return (uint64_t *)address;
    }
    PyBuffer_Release(view);
    return NULL;
}
