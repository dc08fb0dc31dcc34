//! What travels between two agents, byte for byte.
//!
//! A control stream carries frames ([`frame`]): a big-endian `u32` length, then one protobuf envelope ([`proto`], written
//! down as derives, so that no compiler is needed). [`messages`] is the same as types that cannot be wrong: decoding
//! either yields one of them, or nothing (a message of a newer version), or an error that ends the connection.
//!
//! What breaks the wire gets a new application protocol ([`version`]). What adds to it is a field with a
//! new number, which older agents skip, or a capability in the hello. A field number is never used twice.
//!
//! What the sender is protected from and by whom: peers are authenticated, but neither trusted nor assumed to run our
//! code. So every length is limited ([`limits`]) before anything is allocated for it, and nothing a peer sends can
//! panic.
pub mod digest;
pub mod frame;
pub mod limits;
pub mod messages;
pub mod proto;
pub mod registry;
pub mod version;
