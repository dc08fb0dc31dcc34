//! The scripts of the pods, executed.

mod corpus;
mod pod;
mod quoting;
mod runs;
mod shell;
mod user;
