//! What travels between two agents, byte for byte.
pub mod registry;
