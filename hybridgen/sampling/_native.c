/* The Python face of the sampling kernel: checks arguments, lets go of the interpreter, calls C. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "hybridgen/sampling/lane_type.h"
#include "hybridgen/sampling/philox.h"
#include "hybridgen/sampling/row.h"
#include "hybridgen/sampling/step.h"

static const struct hg_lanes *variants[HG_MAX_VARIANTS];
static size_t num_variants;

static int check_count(const char *name, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given >= least && given <= most)
        return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, got %zd", name, least, most,
                 given);
    return -1;
}

static const struct hg_lanes *variant_at(PyObject *argument) {
    size_t index = PyLong_AsSize_t(argument);
    if (PyErr_Occurred())
        return NULL;
    if (index < num_variants)
        return variants[index];
    PyErr_Format(PyExc_ValueError, "variant %zu; this machine runs %zu", index, num_variants);
    return NULL;
}

static void release_all(Py_buffer *views, int count) {
    while (count-- > 0)
        PyBuffer_Release(&views[count]);
}

static int get_all(PyObject *const *args, Py_buffer *views, int count, int flags) {
    for (int i = 0; i < count; i++)
        if (PyObject_GetBuffer(args[i], &views[i], flags)) {
            release_all(views, i);
            return -1;
        }
    return 0;
}

static PyObject *choice_to_python(enum hg_row_error row_error, const struct hg_choice *choice) {
    PyObject *top = PyList_New(0);
    for (uint32_t i = 0; top && i < choice->num_top; i++) {
        PyObject *pair =
            Py_BuildValue("(id)", choice->top[i].token_id, (double)choice->top[i].value);
        if (!pair || PyList_Append(top, pair)) {
            Py_XDECREF(pair);
            Py_DECREF(top);
            return NULL;
        }
        Py_DECREF(pair);
    }
    if (!top)
        return NULL;
    return Py_BuildValue("(iidN)", choice->token_id, (int)row_error, (double)choice->logprob, top);
}

static const char *check_row_arguments(const Py_buffer *logits, const Py_buffer *sampling,
                                       const Py_buffer *history, size_t prompt_len) {
    if (logits->len == 0 || logits->len % 4 || logits->len / 4 > INT32_MAX)
        return "logits must be float32 and not empty";
    if ((size_t)sampling->len != sizeof(struct hg_sampling))
        return "sampling must be one struct hg_sampling";
    if (history->len % 4 || prompt_len > (size_t)history->len / 4)
        return "history must be int32 and hold prompt_len ids or more";
    return NULL;
}

static void refuse_vocab(size_t vocab) {
    PyErr_Format(PyExc_ValueError, "a vocabulary of %zu; the sampler's limit is %u", vocab,
                 HG_MAX_VOCAB);
}

PyDoc_STRVAR(sample_row_doc,
             "sample_row(logits, sampling, history, prompt_len, variant=0, mask=None, /)\n--\n\n"
             "Choose one token: float32 logits, a packed struct hg_sampling, int32 ids of prompt\n"
             "and output so far (their number is the absolute position), and the ids that may\n"
             "come as Lane.set_mask takes them, in whole words of 8 bytes.\n\n"
             "Returns (token_id, row_error, logprob, [(token_id, logprob), ...]); token_id is -1\n"
             "with a row_error, logprob is NaN when none was asked for.");

static PyObject *sample_row(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (check_count("sample_row", nargs, 4, 6))
        return NULL;
    size_t prompt_len = PyLong_AsSize_t(args[3]);
    if (PyErr_Occurred())
        return NULL;
    const struct hg_lanes *lanes = nargs > 4 ? variant_at(args[4]) : variants[0];
    Py_buffer views[3], mask = {0};
    if (!lanes || get_all(args, views, 3, PyBUF_SIMPLE))
        return NULL;
    if (nargs > 5 && args[5] != Py_None && PyObject_GetBuffer(args[5], &mask, PyBUF_SIMPLE)) {
        release_all(views, 3);
        return NULL;
    }
    PyObject *result = NULL;
    const char *problem = check_row_arguments(&views[0], &views[1], &views[2], prompt_len);
    if (!problem && mask.buf && (size_t)mask.len < (size_t)(views[0].len / 4 + 63) / 64 * 8)
        problem = "mask must have a word of 8 bytes for each 64 logits";
    size_t vocab = (size_t)views[0].len / 4;
    struct hg_scratch *scratch = problem || vocab > HG_MAX_VOCAB ? NULL : hg_scratch_get(vocab);
    if (problem) {
        PyErr_SetString(PyExc_ValueError, problem);
    } else if (vocab > HG_MAX_VOCAB) {
        refuse_vocab(vocab);
    } else if (!scratch) {
        PyErr_NoMemory();
    } else {
        struct hg_choice choice;
        enum hg_row_error row_error;
        Py_BEGIN_ALLOW_THREADS
        row_error = hg_sample_row(lanes, scratch, views[0].buf, vocab, views[1].buf, mask.buf,
                                  views[2].buf, prompt_len, (size_t)views[2].len / 4, &choice);
        Py_END_ALLOW_THREADS
        result = choice_to_python(row_error, &choice);
    }
    PyBuffer_Release(&mask);
    release_all(views, 3);
    return result;
}

PyDoc_STRVAR(sample_step_doc,
             "sample_step(logits, sampled, slots, tokens, logprobs, step, lane, is_rest=False,\n"
             "            variant=0, /)\n--\n\n"
             "Sample all rows of `lane` in `step`; the buffers are whole segments. Rows that need\n"
             "their complete logits before these are there are left, and so are rows whose last\n"
             "token another lane has yet to publish (num_early of them): wait for the ring's\n"
             "`whole`, or a moment, and call again with `is_rest`, which does those alone.\n\n"
             "Returns (num_rows, num_tokens, detokenizers, num_stale, num_invalid, num_cut,\n"
             "num_left, num_early): what this call did, detokenizers as a bit mask, num_cut the\n"
             "tokens found without the row. Raises ValueError, with nothing written, when they\n"
             "contradict each other.");

static PyObject *sample_step(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (check_count("sample_step", nargs, 7, 9))
        return NULL;
    uint64_t step = PyLong_AsUnsignedLongLong(args[5]);
    if (PyErr_Occurred())
        return NULL;
    uint64_t lane = PyLong_AsUnsignedLongLong(args[6]);
    if (PyErr_Occurred())
        return NULL;
    int is_rest = nargs > 7 ? PyObject_IsTrue(args[7]) : 0;
    if (is_rest < 0)
        return NULL;
    const struct hg_lanes *lanes = nargs > 8 ? variant_at(args[8]) : variants[0];
    Py_buffer views[HG_NUM_ARGS];
    if (!lanes || get_all(args, views, HG_NUM_ARGS, PyBUF_WRITABLE))
        return NULL;
    struct hg_segment segments[HG_NUM_ARGS];
    for (int i = 0; i < HG_NUM_ARGS; i++)
        segments[i] = (struct hg_segment){views[i].buf, (size_t)views[i].len};
    struct hg_segments opened;
    struct hg_step_report r;
    char error[200];
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = hg_open_segments(segments, &opened, error, sizeof error) ||
             hg_sample_step(&opened, lanes, NULL, step, lane, is_rest, &r, error, sizeof error);
    Py_END_ALLOW_THREADS
    release_all(views, HG_NUM_ARGS);
    if (failed) {
        PyErr_SetString(PyExc_ValueError, error);
        return NULL;
    }
    return Py_BuildValue("(KKKKKKKK)", r.num_rows, r.num_tokens, r.detokenizers, r.num_stale,
                         r.num_invalid, r.num_cut, r.num_left, r.num_early);
}

PyDoc_STRVAR(weights_doc, "weights(logits, top, temperature, out, variant=0, /)\n--\n\n"
                          "Write the weight of each float32 logit into out (see lanes.h); the\n"
                          "number of logits is a multiple of 16.");

static PyObject *weights(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (check_count("weights", nargs, 4, 5))
        return NULL;
    double top = PyFloat_AsDouble(args[1]), temperature = PyFloat_AsDouble(args[2]);
    if (PyErr_Occurred())
        return NULL;
    const struct hg_lanes *lanes = nargs > 4 ? variant_at(args[4]) : variants[0];
    Py_buffer in, out;
    if (!lanes || get_all(&args[0], &in, 1, PyBUF_SIMPLE))
        return NULL;
    if (get_all(&args[3], &out, 1, PyBUF_WRITABLE)) {
        PyBuffer_Release(&in);
        return NULL;
    }
    int is_right = in.len == out.len && in.len % (Py_ssize_t)(HG_LANES * sizeof(float)) == 0;
    if (is_right)
        lanes->weights(in.buf, (size_t)in.len / sizeof(float), (float)top,
                       (float)(1.4426950408889634 / temperature), out.buf);
    PyBuffer_Release(&in);
    PyBuffer_Release(&out);
    if (is_right)
        Py_RETURN_NONE;
    PyErr_SetString(PyExc_ValueError, "logits and out must be as long, in multiples of 16 floats");
    return NULL;
}

PyDoc_STRVAR(total_weight_doc, "total_weight(logits, temperature, variant=0, /)\n--\n\n"
                               "The exact sum of the weights of a row of finite or -inf float32\n"
                               "logits, its largest one being the top.");

static PyObject *total_weight(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (check_count("total_weight", nargs, 2, 3))
        return NULL;
    double temperature = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    const struct hg_lanes *lanes = nargs > 2 ? variant_at(args[2]) : variants[0];
    Py_buffer view;
    if (!lanes || get_all(args, &view, 1, PyBUF_SIMPLE))
        return NULL;
    size_t vocab = (size_t)view.len / sizeof(float);
    struct hg_scratch *scratch = vocab > HG_MAX_VOCAB ? NULL : hg_scratch_get(vocab);
    PyObject *result = NULL;
    if (vocab == 0 || view.len % (Py_ssize_t)sizeof(float))
        PyErr_SetString(PyExc_ValueError, "logits must be float32 and not empty");
    else if (vocab > HG_MAX_VOCAB)
        refuse_vocab(vocab);
    else if (!scratch)
        PyErr_NoMemory();
    else
        result = PyFloat_FromDouble(
            hg_total_weight(lanes, scratch, view.buf, vocab, temperature));
    PyBuffer_Release(&view);
    return result;
}

PyDoc_STRVAR(philox_doc, "philox(c0, c1, c2, c3, k0, k1, /)\n--\n\n"
                         "Philox4x32-10 of one counter and key, as four words.");

static PyObject *philox(PyObject *self, PyObject *const *args, Py_ssize_t nargs) {
    (void)self;
    if (check_count("philox", nargs, 6, 6))
        return NULL;
    uint32_t word[6];
    for (int i = 0; i < 6; i++)
        word[i] = (uint32_t)PyLong_AsUnsignedLongMask(args[i]);
    if (PyErr_Occurred())
        return NULL;
    hg_philox(word, word[4], word[5]);
    return Py_BuildValue("(IIII)", word[0], word[1], word[2], word[3]);
}

PyDoc_STRVAR(variants_doc, "variants()\n--\n\n"
                           "Names of the kernels this machine can run, best first; the index is\n"
                           "what `variant` arguments take.");

static PyObject *variant_names(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    PyObject *names = PyTuple_New((Py_ssize_t)num_variants);
    for (size_t i = 0; names && i < num_variants; i++) {
        PyObject *name = PyUnicode_FromString(variants[i]->name);
        if (!name || PyTuple_SetItem(names, (Py_ssize_t)i, name)) {
            Py_DECREF(names);
            return NULL;
        }
    }
    return names;
}

#define FASTCALL(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL
static PyMethodDef methods[] = {
    {"sample_row", FASTCALL(sample_row), sample_row_doc},
    {"sample_step", FASTCALL(sample_step), sample_step_doc},
    {"weights", FASTCALL(weights), weights_doc},
    {"total_weight", FASTCALL(total_weight), total_weight_doc},
    {"philox", FASTCALL(philox), philox_doc},
    {"variants", variant_names, METH_NOARGS, variants_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_native", "Sampling, one call per row or per step.", -1, methods,
    NULL,                  NULL,      NULL,                                     NULL,
};

PyMODINIT_FUNC PyInit__native(void) {
    num_variants = hg_lanes_usable(variants);
    PyObject *self = PyModule_Create(&module);
    if (self && hg_add_lane_type(self)) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}
