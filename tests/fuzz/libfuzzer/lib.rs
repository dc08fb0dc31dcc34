//! Nothing: its build makes `libfuzzer.a`, which `tests/fuzz/run` links.
