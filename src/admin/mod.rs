//! Read-only documents shared by the daemon and `agentctl`.
