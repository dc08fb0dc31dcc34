//! The configuration of an agent: defaults, then a TOML file, then `TRIBUTARY__…` variables.
