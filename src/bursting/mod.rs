//! The two sides of a burst: root and provider.
pub mod addresses;
pub mod contact;
mod convert;
pub mod exchange;
pub mod nodes;
pub mod note;
pub mod peers;
pub mod provider;
pub mod root;
pub mod template;
pub mod timing;
