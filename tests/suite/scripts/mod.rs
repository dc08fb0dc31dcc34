//! The scripts of the pods, executed.

mod corpus;
mod ends;
mod leaving;
mod listening;
mod pod;
mod queue;
mod quoting;
mod restful;
mod runs;
mod shell;
mod sidecars;
mod user;
