//! `HostedBurst`: a burst of another cluster that runs here (provider side).
