/* hybridgen.ipc._native: what Python cannot do with shared memory by itself.
 *
 *   load(buf, offset) -> int            acquire load of a 64-bit word
 *   store(buf, offset, value)           release store
 *   wait(buf, offset, expected, spin_us, timeout_us) -> int
 *   wake(buf, offset, count=2**31-1) -> int
 *   ring_push(buf, records) -> int      see record_ring.py
 *   ring_pop(buf, max_records) -> bytes
 *   layout() -> dict[str, int]          offsets and sizes of layout.h
 *   set_parent_death_signal(signum)     prctl(PR_SET_PDEATHSIG)
 */
#include <errno.h>
#include <limits.h>
#include <sys/prctl.h>

#include "ipc/atomics.h"
#include "ipc/layout_table.h"
#include "ipc/record_ring.h"

static int check_count(Py_ssize_t have, Py_ssize_t low, Py_ssize_t high, const char *usage) {
    if (have >= low && have <= high)
        return 0;
    PyErr_Format(PyExc_TypeError, "usage: %s", usage);
    return -1;
}

/* Words are unsigned; numbers outside 0 … 2^64-1 raise OverflowError. */
static int as_word(PyObject *number, uint64_t *value) {
    const unsigned long long word = PyLong_AsUnsignedLongLong(number);
    if (word == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    *value = word;
    return 0;
}

/* Microseconds to nanoseconds; negative and absurd values are an error, not a long sleep. */
static int as_ns(PyObject *number, const char *name, int64_t *value_ns) {
    const long long value_us = PyLong_AsLongLong(number);
    if (value_us == -1 && PyErr_Occurred())
        return -1;
    if (value_us < 0 || value_us > INT64_MAX / 2000) {
        PyErr_Format(PyExc_ValueError, "%s is out of range: %lld", name, value_us);
        return -1;
    }
    *value_ns = value_us * 1000;
    return 0;
}

static PyObject *native_load(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    Py_buffer view;
    if (check_count(num_args, 2, 2, "load(buf, offset)") != 0)
        return NULL;
    const uint64_t *word = hg_word(args[0], args[1], 0, &view);
    if (word == NULL)
        return NULL;
    const uint64_t value = hg_load(word);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *native_store(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    Py_buffer view;
    uint64_t value;
    if (check_count(num_args, 3, 3, "store(buf, offset, value)") != 0 ||
        as_word(args[2], &value) != 0)
        return NULL;
    uint64_t *word = hg_word(args[0], args[1], 1, &view);
    if (word == NULL)
        return NULL;
    hg_store(word, value);
    PyBuffer_Release(&view);
    Py_RETURN_NONE;
}

/* Returns the word as soon as it differs from `expected`; else what it is after a wake-up, the
 * time limit or a signal, whichever comes first.  The GIL is free meanwhile. */
static PyObject *native_wait(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    Py_buffer view;
    uint64_t expected;
    int64_t spin_ns, timeout_ns;
    if (check_count(num_args, 5, 5, "wait(buf, offset, expected, spin_us, timeout_us)") != 0 ||
        as_word(args[2], &expected) != 0 || as_ns(args[3], "spin_us", &spin_ns) != 0 ||
        as_ns(args[4], "timeout_us", &timeout_ns) != 0)
        return NULL;
    uint64_t *word = hg_word(args[0], args[1], 0, &view);
    if (word == NULL)
        return NULL;
    uint64_t value = hg_load(word);
    if (value == expected && timeout_ns > 0) {
        Py_BEGIN_ALLOW_THREADS;
        value = hg_wait(word, expected, spin_ns, timeout_ns);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&view);
    if (PyErr_CheckSignals() != 0)
        return NULL;
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *native_wake(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    Py_buffer view;
    long count = INT_MAX;
    if (check_count(num_args, 2, 3, "wake(buf, offset, count=2**31-1)") != 0)
        return NULL;
    if (num_args == 3) {
        count = PyLong_AsLong(args[2]);
        if (count == -1 && PyErr_Occurred())
            return NULL;
        if (count < 0 || count > INT_MAX) {
            PyErr_Format(PyExc_ValueError, "count is out of range: %ld", count);
            return NULL;
        }
    }
    uint64_t *word = hg_word(args[0], args[1], 0, &view);
    if (word == NULL)
        return NULL;
    const int num_woken = hg_futex_wake(word, (int)count);
    PyBuffer_Release(&view);
    if (num_woken < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromLong(num_woken);
}

static PyObject *native_set_parent_death_signal(PyObject *module, PyObject *signum) {
    (void)module;
    const long number = PyLong_AsLong(signum);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    if (prctl(PR_SET_PDEATHSIG, (unsigned long)number, 0, 0, 0) != 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

#define FAST(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef METHODS[] = {
    {"load", FAST(native_load), METH_FASTCALL, "load(buf, offset)\n--\n\nAcquire a word."},
    {"store", FAST(native_store), METH_FASTCALL,
     "store(buf, offset, value)\n--\n\nRelease-store a word."},
    {"wait", FAST(native_wait), METH_FASTCALL,
     "wait(buf, offset, expected, spin_us, timeout_us)\n--\n\nSpin, then sleep, on a word."},
    {"wake", FAST(native_wake), METH_FASTCALL,
     "wake(buf, offset, count=2147483647)\n--\n\nWake those who sleep on a word."},
    {"ring_push", FAST(hg_ring_push), METH_FASTCALL,
     "ring_push(buf, records)\n--\n\nPush as many records as fit; returns their number."},
    {"ring_pop", FAST(hg_ring_pop), METH_FASTCALL,
     "ring_pop(buf, max_records)\n--\n\nPop at most max_records records."},
    {"layout", hg_layout, METH_NOARGS, "layout()\n--\n\nOffsets and sizes of layout.h."},
    {"set_parent_death_signal", native_set_parent_death_signal, METH_O,
     "set_parent_death_signal(signum)\n--\n\nSignal sent to this process when its parent ends."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot SLOTS[] = {{0, NULL}};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "hybridgen.ipc._native", "Atomics, futexes and the layout.", 0,
    METHODS, SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&MODULE); }
