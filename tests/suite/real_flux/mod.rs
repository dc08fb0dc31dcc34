//! Real Flux judges the wiring.
//!
//! The lane needs a flux-core install, which `FLUXROOT` names (see [`install`]); without it every test here is skipped, and
//! one line on standard error says so. With it: `FLUXROOT=… cargo test -p tributary-tests --test suite real_flux`. It
//! needs Linux with user namespaces, util-linux, iproute2 and what Flux itself needs to run; no container engine.

mod demand;
mod ends;
mod formats;
mod gateway;
mod install;
mod ipv6;
mod listening;
mod mpi;
mod pod;
mod preflight;
mod queue;
mod restful;
mod scripts;
mod tunnel;
mod wiring;
mod world;
