"""The HTTP front door: pure encoders and a plain ASGI application over an ``AsyncClient``."""
