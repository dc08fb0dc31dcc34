//! Peering with the agents of other clusters: wire, session, mesh, identity, transport.
