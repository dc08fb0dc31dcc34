//! What becomes of a running instance when its spec changes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tributary_contract::word::Word;

/// What becomes of a running instance when the spec asks for something that only a new Job can bring: another image,
/// another command, more ranks than were declared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpdatePolicy {
    /// It runs on as it was started; the condition `RestartRequired` names the fields. The next Job follows the spec:
    /// after somebody deletes the Job, or asks for it by the annotation `tributary.dev/restart`.
    #[default]
    OnDelete,
    /// It is started anew at once: bursts are released, the Job is deleted, and when its pods are gone the next one is
    /// made. A command that had ended runs again.
    Recreate,
    /// A word of a newer version: no instance is made, and one that runs is left as it is.
    #[serde(untagged)]
    #[schemars(skip)]
    Unknown(Word),
}
