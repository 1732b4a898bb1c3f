//! The library that Python loads as `cntkio._core`. All of its code is in the crate `cntkio-python`.
//!
//! It is a crate of its own because cargo compiles a library for Python only after the crates that it is linked with
//! are complete. The crate `cntkio-python` needs only their interfaces, so it is compiled at the same time as the core.

// The function that Python calls to import the module comes from this crate.
use cntkio_python as _;
