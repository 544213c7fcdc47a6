/* A ring of fixed-size records from one process to one other; drawn in record_ring.py.
 * Geometry = {num_records, record_bytes}; records start at HG_RECORDS_OFFSET. */
#ifndef HYBRIDGEN_RECORD_RING_H
#define HYBRIDGEN_RECORD_RING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

#define HG_RING 7 /* segment kind, after enum hg_kind */
#define HG_RING_OFFSET 128 /* struct hg_ring, behind the segment header */

struct hg_ring {
    uint64_t head; /* records pushed so far.  Writer: the producer */
    uint64_t head_reserved[7];
    uint64_t tail; /* records popped so far.  Writer: the consumer */
    uint64_t tail_reserved[7];
};

PyObject *hg_ring_push(PyObject *module, PyObject *const *args, Py_ssize_t num_args);
PyObject *hg_ring_pop(PyObject *module, PyObject *const *args, Py_ssize_t num_args);

#endif
