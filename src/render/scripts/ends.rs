//! How the ends of the tunnel are started in the pods that need them.

use tributary_flux::Topology;

use super::AS_IT_IS;
use super::template::settings;
use super::user::User;
use super::words;
use crate::flux_files::BROKER_PORT;
use crate::model::{Model, Role};

/// TCP port of an end: in the lead's pod at the pod's address, and in pods of bursts at 127.0.0.1.
pub const ENDS_PORT: u16 = BROKER_PORT + 1;

const ENDS: &str = include_str!("ends.sh");
const LEAD: &str = include_str!("ends_lead.sh");
const BURST: &str = include_str!("ends_burst.sh");

/// Starts them, before the broker.
pub(super) fn start(model: &Model<'_>) -> String {
    if !model.has_ends() {
        return String::new();
    }
    let user = if User::of(model.runner.container).is_some() { String::new() } else { format!("{AS_IT_IS}\n") };
    let (hold, port) = (model.context.lease.as_secs().to_string(), ENDS_PORT.to_string());
    let mut values = settings([("_ends_hold", hold.as_str()), ("_ends_port", &port)]);
    let here = match &model.role {
        Role::Root => {
            values += &settings([("_broker_port", BROKER_PORT.to_string().as_str())]);
            LEAD
        }
        Role::Burst { host, port } => {
            values += &settings([("_lead", format!("{host}:{port}").as_str())]);
            // Not quoted: a pattern.
            let index = if model.topology == Topology::Gateway { "0" } else { "*" };
            values += &format!("_gateways={}-{index}\n", words::quote(model.name));
            BURST
        }
    };
    [&user, &values, ENDS, here].concat()
}

/// Before each start of a broker that may need one.
pub(super) fn find(model: &Model<'_>) -> &'static str {
    if model.has_ends() && matches!(model.role, Role::Burst { .. }) { "        _find_ends\n        " } else { "" }
}
