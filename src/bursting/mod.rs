//! The two sides of a burst: root and provider.
