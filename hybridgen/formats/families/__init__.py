"""The families of models that can be read: one file each, listed in ``registry``."""
