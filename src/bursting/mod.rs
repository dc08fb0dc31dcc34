//! The two sides of a burst: root and provider.
pub mod addresses;
pub mod contact;
mod convert;
pub mod nodes;
pub mod note;
pub mod peers;
pub mod root;
pub mod timing;
