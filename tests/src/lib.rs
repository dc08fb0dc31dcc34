//! Harness of the test suites.

pub mod corpus;
