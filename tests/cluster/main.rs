//! Tests on real control planes.
