//! The program beside the lead broker that tells the agent of its cluster what the queue asks for. Roots with bursts have
//! it, also if none of these runs on demand at their start: that may change while they run.

use super::template::settings;
use super::user::User;
use super::{AS_IT_IS, Access, File};
use crate::flux_files::BROKER_PORT;
use crate::model::Model;

/// TCP port of that program, in the pod of the lead broker.
pub const QUEUE_PORT: u16 = BROKER_PORT + 2;

/// The program: Python, with Flux's own bindings.
const PROGRAM: &str = include_str!("tell-queue.py");
const QUEUE: &str = include_str!("queue.sh");

pub(super) fn file(model: &Model<'_>) -> Option<File> {
    model.has_bursts().then(|| File::new("tell-queue.py", PROGRAM, Access::Read))
}

/// Starts it, before the broker.
pub(super) fn start(model: &Model<'_>) -> String {
    if !model.has_bursts() {
        return String::new();
    }
    let user = if User::of(model.runner.container).is_some() { String::new() } else { format!("{AS_IT_IS}\n") };
    [&user, &settings([("_queue_port", QUEUE_PORT.to_string().as_str())]), QUEUE].concat()
}
