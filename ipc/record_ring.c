/* Push and pop of the record ring: any number of records per call, all that fit. */
#include "ipc/record_ring.h"

#include <string.h>

#include "ipc/atomics.h"
#include "ipc/layout.h"

struct ring {
    struct hg_ring *words;
    uint8_t *records;
    uint64_t num_records; /* a power of two */
    uint64_t record_bytes;
};

/* The geometry is read again on each call and checked against the buffer, so that a damaged
 * segment is an error and never a wild access. */
static int open_ring(const Py_buffer *view, struct ring *ring) {
    const struct hg_header *header = view->buf;
    if (view->len < (Py_ssize_t)HG_RECORDS_OFFSET || header->magic != HG_MAGIC ||
        header->kind != HG_RING) {
        PyErr_SetString(PyExc_ValueError, "the buffer holds no record ring");
        return -1;
    }
    ring->words = (struct hg_ring *)((uint8_t *)view->buf + HG_RING_OFFSET);
    ring->records = (uint8_t *)view->buf + HG_RECORDS_OFFSET;
    ring->num_records = header->geometry[0];
    ring->record_bytes = header->geometry[1];
    const uint64_t space = (uint64_t)view->len - HG_RECORDS_OFFSET;
    const uint64_t count = ring->num_records;
    if (count == 0 || (count & (count - 1)) != 0 || ring->record_bytes == 0 ||
        count > space / ring->record_bytes) {
        PyErr_SetString(PyExc_ValueError, "the record ring's geometry does not fit its buffer");
        return -1;
    }
    return 0;
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Copies `count` records between a flat array and the ring from position `at` on. */
static void copy_records(const struct ring *ring, uint64_t at, uint64_t count, uint8_t *flat,
                         int is_push) {
    const uint64_t start = at & (ring->num_records - 1);
    const uint64_t first = smaller(count, ring->num_records - start);
    uint8_t *where = ring->records + start * ring->record_bytes;
    const size_t first_bytes = first * ring->record_bytes;
    const size_t rest_bytes = (count - first) * ring->record_bytes;
    if (is_push) {
        memcpy(where, flat, first_bytes);
        memcpy(ring->records, flat + first_bytes, rest_bytes);
    } else {
        memcpy(flat, where, first_bytes);
        memcpy(flat + first_bytes, ring->records, rest_bytes);
    }
}

PyObject *hg_ring_push(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    struct ring ring;
    Py_buffer view, input;
    PyObject *result = NULL;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "ring_push(buf, records)");
        return NULL;
    }
    if (PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) != 0)
        return NULL;
    if (PyObject_GetBuffer(args[1], &input, PyBUF_SIMPLE) != 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    if (open_ring(&view, &ring) == 0) {
        const uint64_t offered = (uint64_t)input.len / ring.record_bytes;
        if ((uint64_t)input.len % ring.record_bytes != 0) {
            PyErr_Format(PyExc_ValueError, "%zd bytes are no whole number of records", input.len);
        } else {
            const uint64_t head = ring.words->head;
            const uint64_t used = head - hg_load(&ring.words->tail);
            const uint64_t room = used < ring.num_records ? ring.num_records - used : 0;
            const uint64_t count = smaller(offered, room);
            copy_records(&ring, head, count, input.buf, 1);
            hg_store(&ring.words->head, head + count);
            result = PyLong_FromUnsignedLongLong(count);
        }
    }
    PyBuffer_Release(&input);
    PyBuffer_Release(&view);
    return result;
}

PyObject *hg_ring_pop(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    struct ring ring;
    Py_buffer view;
    PyObject *result = NULL;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "ring_pop(buf, max_records)");
        return NULL;
    }
    const unsigned long long limit = PyLong_AsUnsignedLongLong(args[1]);
    if (limit == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (PyObject_GetBuffer(args[0], &view, PyBUF_WRITABLE) != 0)
        return NULL;
    if (open_ring(&view, &ring) == 0) {
        const uint64_t tail = ring.words->tail;
        const uint64_t filled = hg_load(&ring.words->head) - tail;
        /* A head out of range can only be damage; never read past the ring for it. */
        const uint64_t count = smaller(smaller(filled, limit), ring.num_records);
        result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * ring.record_bytes));
        if (result != NULL) {
            copy_records(&ring, tail, count, (uint8_t *)PyBytes_AsString(result), 0);
            hg_store(&ring.words->tail, tail + count);
        }
    }
    PyBuffer_Release(&view);
    return result;
}
