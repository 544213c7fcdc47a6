/* Futexes and checked access to words.
 *
 * The futex is the shared kind (not FUTEX_PRIVATE), on the half of the word that holds its low 32
 * bits.  A value that differs only in the high half would be missed by the kernel's comparison,
 * never by ours, and our own comes first; step counters need 2^32 steps between two looks for it.
 */
#include "ipc/atomics.h"

int hg_futex_wait(uint64_t *word, uint64_t expected, int64_t timeout_ns) {
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    return (int)syscall(SYS_futex, hg_low_half(word), FUTEX_WAIT, (uint32_t)expected, &timeout,
                        NULL, 0);
}

uint64_t hg_wait(uint64_t *word, uint64_t expected, int64_t spin_ns, int64_t timeout_ns) {
    uint64_t value = hg_load(word);
    if (value != expected || timeout_ns <= 0)
        return value;
    const int64_t start = hg_now_ns();
    const int64_t spin_end = start + (spin_ns < timeout_ns ? spin_ns : timeout_ns);
    for (unsigned turn = 0; spin_ns > 0; turn++) {
        value = hg_load(word);
        if (value != expected)
            return value;
        HG_PAUSE();
        if (turn % 32 == 31 && hg_now_ns() >= spin_end)
            break;
    }
    const int64_t left_ns = start + timeout_ns - hg_now_ns();
    if (left_ns > 0)
        hg_futex_wait(word, expected, left_ns); /* every outcome ends in a fresh look */
    return hg_load(word);
}

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
