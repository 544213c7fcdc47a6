/* See lane_type.h. */
#include "hybridgen/sampling/lane_type.h"

#include "hybridgen/sampling/turn.h"

struct lane {
    PyObject_HEAD
    Py_buffer views[HG_NUM_ARGS]; /* keep the mappings for as long as the lane is there */
    struct hg_segments segments;
    const struct hg_lanes *lanes;
    struct hg_masks masks;
    uint64_t index;
};

static int open_views(struct lane *self, uint64_t index) {
    struct hg_segment segments[HG_NUM_ARGS];
    char error[200];
    for (int i = 0; i < HG_NUM_ARGS; i++)
        segments[i] = (struct hg_segment){self->views[i].buf, (size_t)self->views[i].len};
    if (hg_open_segments(segments, &self->segments, error, sizeof error)) {
        PyErr_SetString(PyExc_ValueError, error);
        return -1;
    }
    if (index >= self->segments.logits.num_lanes) {
        PyErr_Format(PyExc_ValueError, "lane %llu; the ring has %llu", (unsigned long long)index,
                     (unsigned long long)self->segments.logits.num_lanes);
        return -1;
    }
    self->index = index;
    if (hg_masks_open(&self->masks, self->segments.slots.num_slots,
                      self->segments.logits.vocab_size)) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (kwargs && PyDict_Size(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Lane takes no keyword arguments");
        return NULL;
    }
    PyObject *segments[HG_NUM_ARGS], *number;
    if (!PyArg_ParseTuple(args, "OOOOOO:Lane", &segments[0], &segments[1], &segments[2],
                          &segments[3], &segments[4], &number))
        return NULL;
    uint64_t index = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    struct lane *self = (struct lane *)PyType_GenericAlloc(type, 0); /* zeroed: no view is held */
    if (!self)
        return NULL;
    const struct hg_lanes *variants[HG_MAX_VARIANTS];
    hg_lanes_usable(variants);
    self->lanes = variants[0];
    int failed = 0;
    for (int i = 0; i < HG_NUM_ARGS && !failed; i++)
        failed = PyObject_GetBuffer(segments[i], &self->views[i], PyBUF_WRITABLE);
    if (failed || open_views(self, index)) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void lane_dealloc(PyObject *object) {
    struct lane *self = (struct lane *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < HG_NUM_ARGS; i++)
        PyBuffer_Release(&self->views[i]); /* nothing, where none is held */
    hg_masks_close(&self->masks);
    PyObject_Free(object);
    Py_DECREF(type);
}

/* Microseconds to nanoseconds; negative and absurd values are an error, not a long sleep. */
static int as_ns(PyObject *number, int64_t *value_ns) {
    const long long value_us = PyLong_AsLongLong(number);
    if (value_us == -1 && PyErr_Occurred())
        return -1;
    if (value_us < 0 || value_us > INT64_MAX / 2000) {
        PyErr_Format(PyExc_ValueError, "a time is out of range: %lld", value_us);
        return -1;
    }
    *value_ns = value_us * 1000;
    return 0;
}

static PyObject *refuse(uint64_t step, const char *error) {
    PyErr_Format(PyExc_ValueError, "step %llu cannot be sampled: %s", (unsigned long long)step,
                 error);
    return NULL;
}

static PyObject *report_to_python(const struct hg_step_report *r) {
    return Py_BuildValue("(KKKKKKKKKK)", r->elapsed_ns, r->num_rows, r->num_tokens,
                         r->detokenizers, r->num_stale, r->num_invalid, r->num_cut, r->num_left,
                         r->num_early, r->num_unmasked);
}

PyDoc_STRVAR(next_step_doc,
             "next_step(seen, spin_us, timeout_us, /)\n--\n\n"
             "Wait until the ring's `latest` is not `seen` (spinning, then asleep, at most\n"
             "timeout_us), and do the lane's rows of the first step after it that can still be\n"
             "open. Not interrupted in between, so the lane is done as soon as it can be.\n\n"
             "Returns (latest, step, report). Call with `step` next: it is `seen` itself when\n"
             "there was none, and with a `latest` of POISON. The report is as rest_of_step's.\n"
             "Raises ValueError, with nothing written, when the step cannot be sampled.");

static PyObject *next_step(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    struct lane *self = (struct lane *)object;
    int64_t spin_ns, timeout_ns;
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "next_step takes 3 arguments, got %zd", nargs);
    uint64_t seen = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred() || as_ns(args[1], &spin_ns) || as_ns(args[2], &timeout_ns))
        return NULL;
    struct hg_turn turn;
    char error[200];
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = hg_next_step(&self->segments, self->lanes, &self->masks, self->index, seen, spin_ns,
                          timeout_ns, &turn, error, sizeof error);
    Py_END_ALLOW_THREADS
    if (failed)
        return refuse(turn.step, error);
    PyObject *report = report_to_python(&turn.report);
    return report ? Py_BuildValue("(KKN)", turn.latest, turn.step, report) : NULL;
}

PyDoc_STRVAR(rest_of_step_doc,
             "rest_of_step(step, /)\n--\n\n"
             "Do the rows that next_step left, as sample_step does with `is_rest`.\n\n"
             "Returns (elapsed_ns, num_rows, num_tokens, detokenizers, num_stale, num_invalid,\n"
             "num_cut, num_left, num_early, num_unmasked), zeros when the step's place is being\n"
             "reused; elapsed_ns runs until `done` is stored. Raises as next_step.");

static PyObject *rest_of_step(PyObject *object, PyObject *number) {
    struct lane *self = (struct lane *)object;
    uint64_t step = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    struct hg_step_report report;
    char error[200];
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = hg_rest_of_step(&self->segments, self->lanes, &self->masks, step, self->index,
                             &report, error, sizeof error);
    Py_END_ALLOW_THREADS
    return failed ? refuse(step, error) : report_to_python(&report);
}

PyDoc_STRVAR(await_rows_doc,
             "await_rows(step, spin_us, timeout_us, /)\n--\n\n"
             "Wait until a row that next_step left is there, complete, or the step is there no\n"
             "more; is it so? Then rest_of_step has something to do, or says that nothing is.\n\n"
             "Spins, then sleeps, at most timeout_us. A device wakes nobody and poison does not end\n"
             "this wait: call in a loop, for short times.");

static PyObject *await_rows(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    struct lane *self = (struct lane *)object;
    int64_t spin_ns, timeout_ns;
    if (nargs != 3)
        return PyErr_Format(PyExc_TypeError, "await_rows takes 3 arguments, got %zd", nargs);
    uint64_t step = PyLong_AsUnsignedLongLong(args[0]);
    if (PyErr_Occurred() || as_ns(args[1], &spin_ns) || as_ns(args[2], &timeout_ns))
        return NULL;
    int is_there;
    Py_BEGIN_ALLOW_THREADS
    is_there = hg_await_rows(&self->segments, step, self->index, spin_ns, timeout_ns);
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(is_there);
}

PyDoc_STRVAR(due_masks_doc,
             "due_masks(step, /)\n--\n\n"
             "The masks that are not there: those that rows of the step wait for; when none does,\n"
             "those of the tokens after them.\n\n"
             "Returns [(slot, epoch, position), ...], empty when the step is there no more.");

#define MAX_DUE 64 /* at once; whoever is not done asks again */

static PyObject *due_masks(PyObject *object, PyObject *number) {
    struct lane *self = (struct lane *)object;
    uint64_t step = PyLong_AsUnsignedLongLong(number);
    if (PyErr_Occurred())
        return NULL;
    struct hg_due_mask due[MAX_DUE];
    size_t count = hg_due_masks(&self->segments, &self->masks, step, self->index, due, MAX_DUE);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *item = Py_BuildValue("(KKK)", due[i].slot, due[i].epoch, due[i].position);
        if (!item || PyList_Append(list, item))
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

PyDoc_STRVAR(set_mask_doc,
             "set_mask(slot, epoch, position, bits, /)\n--\n\n"
             "Say which ids may come at a position: bit i % 8 of byte i // 8 of `bits` is id i,\n"
             "ids beyond them may not. None: the grammar cannot go on, the row ends with an error.\n\n"
             "Raises ValueError for a slot that is not there.");

static PyObject *set_mask(PyObject *object, PyObject *const *args, Py_ssize_t nargs) {
    struct lane *self = (struct lane *)object;
    if (nargs != 4)
        return PyErr_Format(PyExc_TypeError, "set_mask takes 4 arguments, got %zd", nargs);
    uint64_t place[3]; /* slot, epoch, position */
    for (int i = 0; i < 3; i++) {
        place[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (PyErr_Occurred())
            return NULL;
    }
    if (place[0] >= self->masks.num_slots)
        return PyErr_Format(PyExc_ValueError, "slot %llu; there are %zu",
                            (unsigned long long)place[0], self->masks.num_slots);
    Py_buffer bits = {0};
    if (args[3] != Py_None && PyObject_GetBuffer(args[3], &bits, PyBUF_SIMPLE))
        return NULL;
    int failed = hg_masks_set(&self->masks, place[0], place[1], place[2], bits.buf,
                              (size_t)bits.len);
    PyBuffer_Release(&bits);
    if (failed)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

PyDoc_STRVAR(lane_doc,
             "Lane(logits, sampled, slots, tokens, logprobs, lane, /)\n--\n\n"
             "A lane over whole segments, which are checked here, once, and kept mapped.\n\n"
             "Raises ValueError when they contradict each other.");

static PyMethodDef METHODS[] = {
    {"next_step", (PyCFunction)(void (*)(void))next_step, METH_FASTCALL, next_step_doc},
    {"rest_of_step", rest_of_step, METH_O, rest_of_step_doc},
    {"await_rows", (PyCFunction)(void (*)(void))await_rows, METH_FASTCALL, await_rows_doc},
    {"due_masks", due_masks, METH_O, due_masks_doc},
    {"set_mask", (PyCFunction)(void (*)(void))set_mask, METH_FASTCALL, set_mask_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot SLOTS[] = {
    {Py_tp_new, lane_new},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_methods, METHODS},
    {Py_tp_doc, (void *)lane_doc},
    {0, NULL},
};

static PyType_Spec SPEC = {
    .name = "hybridgen.sampling._native.Lane",
    .basicsize = sizeof(struct lane),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = SLOTS,
};

int hg_add_lane_type(PyObject *module) {
    PyObject *type = PyType_FromSpec(&SPEC);
    if (!type)
        return -1;
    int failed = PyModule_AddObjectRef(module, "Lane", type);
    Py_DECREF(type);
    return failed;
}
