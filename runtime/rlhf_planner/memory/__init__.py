"""Memory of one device: arithmetic on shapes, and the choices that depend on it."""
