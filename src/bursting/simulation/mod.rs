//! Both sides of bursts on typed stores: the steps that the controllers drive, with faults in between.

mod agent;
mod budgets;
mod cluster;
mod demand;
mod histories;
mod lost_providers;
mod scenarios;
mod weather;
mod world;
