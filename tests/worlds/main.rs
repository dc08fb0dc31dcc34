//! Worlds: clusters whose agents run the very same controllers as the daemon, on the real sessions, over API servers in
//! memory and an in-process network, on paused time. All that happens follows from a seed.
//!
//! | file | what it does |
//! |---|---|
//! | [`agent`] | an agent, of the daemon's own parts |
//! | [`autoscaler`] | nodes that are added for pods that wait, and for those who ask |
//! | [`budgets`], [`demand`], [`lost`], [`owners`], [`provisioning`], [`scale_up`] | scenarios: bursts that end by themselves, providers that are lost, people who decide, nodes that are asked for, and that come or not |
//! | [`chaos`] | users, owners and faults, by chance |
//! | [`cluster`] | an API server, and what stands for Kubernetes beside it |
//! | [`dangers`] | each danger on purpose, in a few lines |
//! | [`invariants`] | what must never happen |
//! | [`kueue`] | Jobs that wait in a queue of Kueue, and MiniClusters that are left to it |
//! | [`leaders`] | leaders that die, and those after them, who are not shown all that was written, or know less |
//! | [`lies`] | lead brokers that answer wrongly, or not at all |
//! | [`lives`] | a burst's life, with one fault at each write of it |
//! | [`mutations`] | rules taken out of the code, which an invariant must miss |
//! | [`queue`] | what lead brokers say of their queues |
//! | [`released`] | clusters that agents of releases have left |
//! | [`rest`] | what is not as it should be once nothing goes wrong any more |
//! | [`sessions`] | sessions that end and begin again |
//! | [`usage`] | records of what was used: both sides agree, and nothing counts twice |
//! | [`work`] | how much work bursts are: passes, requests, memory that is asked for |
//! | [`world`] | clusters that know each other, and what happens to them |
//!
//! | variable | what it says |
//! |---|---|
//! | `WORLDS=n` | how many seeds are played |
//! | `WORLDS_FIRST=n` | the first of them |
//! | `WORLDS_SEED=n` | one seed, with its history; if it fails, without the events that do not matter |
//! | `WORLDS_EVENTS=n` | how much happens in each |
//! | `WORLDS_FAULTS=cut,kill` | which faults there are |
//! | `WORLDS_STOP=1` | no seed is begun after one that failed |
//! | `WORLDS_WRITES=1` | prints all writes |
//! | `WORLDS_EVERY=n` | of the lives with a fault, each n-th is played |
//! | `WORLDS_CLUSTERS=n` | how many clusters [`scenarios`] has at most: 64, up to 256 |
//! | `WORLDS_NODES=1` | in every world, bursts may bring nodes |
//! | `WORLDS_LOG=info` | the agents log |
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod agent;
mod autoscaler;
mod budgets;
mod chaos;
mod cluster;
mod crowded;
mod dangers;
mod demand;
mod invariants;
mod kueue;
mod leaders;
mod lies;
mod lives;
mod lost;
mod mutations;
mod owners;
mod provisioning;
mod queue;
mod released;
mod rest;
mod scale_up;
mod scenarios;
mod sessions;
mod usage;
mod work;
mod world;
