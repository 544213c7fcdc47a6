/* Python's door to the kernels. Every operation takes the pool and one record of ops.h as bytes,
 * already checked by the Python side; the GIL is released while the pool works. */
#include <Python.h>

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "hybridgen/models/experts.h"
#include "hybridgen/models/ops.h"

#define POOL_NAME "hybridgen.models.pool"

static void destroy_pool(PyObject *capsule)
{
    struct hg_pool *pool = PyCapsule_GetPointer(capsule, POOL_NAME);
    if (pool)
        hg_pool_destroy(pool);
}

static PyObject *create_pool(PyObject *self, PyObject *argument)
{
    (void)self;
    long num_threads = PyLong_AsLong(argument);
    if (num_threads == -1 && PyErr_Occurred())
        return NULL;
    if (num_threads < 1 || num_threads > 4096)
        return PyErr_Format(PyExc_ValueError, "num_threads %ld is not in 1 to 4096", num_threads);
    struct hg_pool *pool = hg_pool_create((int)num_threads);
    if (!pool)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *capsule = PyCapsule_New(pool, POOL_NAME, destroy_pool);
    if (!capsule)
        hg_pool_destroy(pool);
    return capsule;
}

/* Copy a record; its length is the one check that both sides mean the same struct. */
static int take_record(PyObject *object, void *record, size_t size)
{
    char *bytes;
    Py_ssize_t length;
    if (PyBytes_AsStringAndSize(object, &bytes, &length) < 0)
        return -1;
    if ((size_t)length != size) {
        PyErr_Format(PyExc_ValueError, "record of %zd bytes, expected %zd", length,
                     (Py_ssize_t)size);
        return -1;
    }
    memcpy(record, bytes, size);
    return 0;
}

static PyObject *run_task(PyObject *capsule, hg_task task, const void *context)
{
    struct hg_pool *pool = PyCapsule_GetPointer(capsule, POOL_NAME);
    if (!pool)
        return NULL;
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = hg_pool_run(pool, task, context);
    Py_END_ALLOW_THREADS
    if (status)
        return PyErr_Format(PyExc_RuntimeError, "the compute pool is in use by another thread");
    Py_RETURN_NONE;
}

static int has_arguments(Py_ssize_t given, Py_ssize_t expected)
{
    if (given == expected)
        return 1;
    PyErr_Format(PyExc_TypeError, "%zd arguments, expected %zd", given, expected);
    return 0;
}

#define OPERATION(name, type, call)                                                               \
    static void name##_task(struct hg_pool *pool, int thread, const void *op)                     \
    {                                                                                             \
        (void)thread;                                                                             \
        call;                                                                                     \
    }                                                                                             \
    static PyObject *name(PyObject *self, PyObject *const *args, Py_ssize_t num_args)             \
    {                                                                                             \
        (void)self;                                                                               \
        struct type record;                                                                       \
        if (!has_arguments(num_args, 2) || take_record(args[1], &record, sizeof record) < 0)      \
            return NULL;                                                                          \
        return run_task(args[0], name##_task, &record);                                           \
    }

OPERATION(pack, hg_pack, hg_pack_phase(pool, op))
OPERATION(linear, hg_linear, hg_linear_phase(pool, op))
OPERATION(gather, hg_gather, hg_gather_phase(pool, op))
OPERATION(norm, hg_norm, hg_norm_phase(pool, op))
OPERATION(mix, hg_mixture, hg_mix(pool, thread, op))
OPERATION(attend, hg_attention, {
    hg_rotate_phase(pool, op);
    hg_barrier(pool);
    hg_attend_phase(pool, thread, op);
})

static PyObject *forward(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    (void)self;
    struct hg_model model;
    struct hg_batch batch;
    char *layers;
    Py_ssize_t length;
    if (!has_arguments(num_args, 4) || take_record(args[1], &model, sizeof model) < 0 ||
        PyBytes_AsStringAndSize(args[2], &layers, &length) < 0 ||
        take_record(args[3], &batch, sizeof batch) < 0)
        return NULL;
    if ((size_t)length != (size_t)model.num_layers * sizeof(struct hg_layer))
        return PyErr_Format(PyExc_ValueError, "layer records of %zd bytes for %lld layers", length,
                            (long long)model.num_layers);
    if (batch.num_tokens < 1 || batch.num_tokens > model.max_rows)
        return PyErr_Format(PyExc_ValueError, "%lld tokens, at most %lld fit the work space",
                            (long long)batch.num_tokens, (long long)model.max_rows);
    struct hg_forward context = {&model, (const struct hg_layer *)layers, &batch};
    return run_task(args[0], hg_forward_task, &context);
}

static int64_t element_named(PyObject *object)
{
    const char *name = PyUnicode_AsUTF8AndSize(object, NULL);
    for (int64_t i = 0; name && i < HG_NUM_ELEMENTS; i++)
        if (!strcmp(name, hg_elements[i].name))
            return i;
    if (name)
        PyErr_Format(PyExc_ValueError, "no kernel for elements %s", name);
    return -1;
}

/* The lengths are checked here, so that no caller can have it read or write elsewhere. */
static PyObject *convert_buffers(int64_t from_element, int64_t to_element, Py_buffer *from,
                                 Py_buffer *to)
{
    const struct hg_element source = hg_elements[from_element], target = hg_elements[to_element];
    int64_t num_blocks = from->len / source.bytes;
    if (target.size != 1)
        return PyErr_Format(PyExc_ValueError, "elements %s are not floats", target.name);
    if (from->len % source.bytes || to->len != num_blocks * source.size * target.bytes)
        return PyErr_Format(PyExc_ValueError, "%zd bytes of %s do not become %zd bytes of %s",
                            from->len, source.name, to->len, target.name);
    struct hg_conversion op = {from->buf, to->buf, num_blocks, from_element, to_element};
    float largest;
    Py_BEGIN_ALLOW_THREADS
    largest = hg_convert(&op);
    Py_END_ALLOW_THREADS
    return PyFloat_FromDouble(largest);
}

static PyObject *convert(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    (void)self;
    if (!has_arguments(num_args, 4))
        return NULL;
    int64_t from_element = element_named(args[0]), to_element = -1;
    if (from_element < 0 || (to_element = element_named(args[2])) < 0)
        return NULL;
    Py_buffer from, to;
    if (PyObject_GetBuffer(args[1], &from, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *largest = NULL;
    if (PyObject_GetBuffer(args[3], &to, PyBUF_WRITABLE) == 0) {
        largest = convert_buffers(from_element, to_element, &from, &to);
        PyBuffer_Release(&to);
    }
    PyBuffer_Release(&from);
    return largest;
}

/* Ask for huge pages: weights are read end to end in every step. Advice, so failure is no error;
 * returns whether the kernel took it. */
static PyObject *advise_huge(PyObject *self, PyObject *const *args, Py_ssize_t num_args)
{
    (void)self;
    if (!has_arguments(num_args, 2))
        return NULL;
    size_t address = PyLong_AsSize_t(args[0]), size = PyLong_AsSize_t(args[1]);
    if (PyErr_Occurred())
        return NULL;
    size_t start = (address + 4095) & ~(size_t)4095, end = (address + size) & ~(size_t)4095;
    int is_taken = end > start && !madvise((void *)start, end - start, MADV_HUGEPAGE);
    return PyBool_FromLong(is_taken);
}

static PyObject *select_kernels(PyObject *self, PyObject *argument)
{
    (void)self;
    const char *name = NULL;
    if (argument != Py_None && !(name = PyUnicode_AsUTF8AndSize(argument, NULL)))
        return NULL;
    const struct hg_kernels *kernels = hg_select_kernels(name);
    if (!kernels)
        return PyErr_Format(PyExc_ValueError, "no kernels '%s' on this CPU", name);
    return PyUnicode_FromString(kernels->name);
}

#define SIZE_OF(name) #name, (Py_ssize_t)sizeof(struct hg_##name)

static PyObject *layout(PyObject *self, PyObject *unused)
{
    (void)self, (void)unused;
    return Py_BuildValue("{sn sn sn sn sn sn sn sn sn sn}", SIZE_OF(pack), SIZE_OF(linear),
                         SIZE_OF(gather), SIZE_OF(norm), SIZE_OF(attention), SIZE_OF(experts),
                         SIZE_OF(mixture), SIZE_OF(layer), SIZE_OF(model), SIZE_OF(batch));
}

#define FAST(name, text) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, text}

static PyMethodDef methods[] = {
    {"create_pool", create_pool, METH_O, "create_pool(num_threads) -> pool"},
    {"select_kernels", select_kernels, METH_O, "select_kernels(name or None) -> name"},
    {"layout", layout, METH_NOARGS, "layout() -> bytes of each record"},
    FAST(pack, "pack(pool, record)"),
    FAST(linear, "linear(pool, record)"),
    FAST(gather, "gather(pool, record)"),
    FAST(norm, "norm(pool, record)"),
    FAST(attend, "attend(pool, record): rotate, store K and V, attention"),
    FAST(mix, "mix(pool, record): the experts of one layer"),
    FAST(forward, "forward(pool, model, layers, batch)"),
    FAST(convert, "convert(element, blocks, float element, floats) -> largest magnitude"),
    FAST(advise_huge, "advise_huge(address, num_bytes) -> bool"),
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "hybridgen.models._native",
    .m_doc = "CPU kernels: see hybridgen/models/ops.h",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void)
{
    hg_select_kernels(NULL);
    return PyModule_Create(&module);
}
