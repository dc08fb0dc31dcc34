//! Plumbing to one API server.
