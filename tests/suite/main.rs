//! Tests that need no cluster: the house, generated files, rendering, wire, command line, documents.
#![allow(missing_docs, clippy::unwrap_used)]

mod chart_matrix;
mod chart_names;
mod chart_notes;
mod charts;
mod commands;
mod corpus;
mod dependencies;
mod diagrams;
mod edges;
mod failures;
mod fields;
mod fuzz;
mod generated;
mod kinds;
mod observability;
mod readme;
mod real_flux;
mod released;
mod releases;
mod render;
mod scripts;
mod threats;
mod upstream_examples;
mod upstream_schema;
