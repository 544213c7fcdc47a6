/* hybridgen.sampling._native.Lane: a sampler's lane over segments that were checked once. */
#ifndef HYBRIDGEN_SAMPLING_LANE_TYPE_H
#define HYBRIDGEN_SAMPLING_LANE_TYPE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds the type to the module; -1 with an exception set. */
int hg_add_lane_type(PyObject *module);

#endif
