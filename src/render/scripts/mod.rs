//! The scripts of the pods, and the files beside them: everything in the ConfigMap `NAME-entrypoint`.
//!
//! The shell is in `*.sh` beside this file; what the spec says enters it as quoted values, as bash arrays, and as files of the
//! user's own shell (see [`hooks`]). Names, paths, variables and broker options are upstream's where users see them.
mod ends;
mod escaped;
mod hooks;
mod options;
mod program;
mod queue;
mod runner;
mod shell;
mod sidecar;
mod template;
mod user;
mod words;

use self::template::{Parts, settings};
use self::user::User;
use super::flux_files;
use super::model::Model;

pub use self::ends::ENDS_PORT;
pub(super) use self::program::Program;
pub use self::program::nests;
pub use self::queue::QUEUE_PORT;
pub use self::shell::shell;
pub(super) use self::sidecar::{has_last_words, is_wrapped_service, last_seconds};
pub(super) use self::words::is_identifier;

/// Where the ConfigMap is mounted.
pub(super) const OPERATOR_DIR: &str = "/flux_operator";

/// Key of what is wanted by now: on the first line, how many brokers the lead waits for; on the second, for how many of bursts its
/// command waits; on the third, the nodes that it asks for, here and in bursts. Of the ConfigMap, it alone may change while the
/// instance runs.
pub const QUORUM_KEY: &str = "quorum";

/// Content of [`QUORUM_KEY`] once the command has ended well: a lead that comes then has nothing to do.
pub const NOTHING_TO_DO: &str = "0\n";

/// Where the Secret with the certificate is mounted, in the container that runs Flux only.
pub(super) const CURVE_DIR: &str = "/flux_operator_curve";

/// Where the program that holds connections to other clusters is mounted, in the container that runs Flux only.
pub(super) const ENDS_DIR: &str = "/flux_operator_ends";

/// The file that runs the RESTful server.
pub(super) const RESTFUL_FILE: &str = "restful.sh";

const INIT: &str = include_str!("init.sh");
const INIT_IPV6: &str = include_str!("init_ipv6.sh");
const INIT_VIEW: &str = include_str!("init_view.sh");
const INIT_NO_VIEW: &str = include_str!("init_no_view.sh");
const ENVIRONMENT: &str = include_str!("environment.sh");
const ENVIRONMENT_VIEW: &str = include_str!("environment_view.sh");
const SIGNALS: &str = include_str!("signals.sh");
const READY: &str = include_str!("ready.sh");
/// What the container that runs Flux found it by, for programs that start later.
const PATHS: &str = include_str!("paths.sh");
const JOINED: &str = include_str!("joined.sh");
const DIAGNOSE: &str = include_str!("diagnose.sh");
const RESTFUL: &str = include_str!("restful.sh");
const STRICT: &str = "set -eEu -o pipefail";
/// Where no user is asked for: commands of Flux run as the container's user.
const AS_IT_IS: &str = "_as_flux=(env)";

/// A file of the ConfigMap.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct File {
    /// Key in the ConfigMap. Keys that are not upstream's have a dot or a capital: no container's name has.
    pub(super) key: String,
    /// Name below [`OPERATOR_DIR`].
    pub(super) name: String,
    pub(super) text: String,
    pub(super) access: Access,
}

/// What users of the pod may do with a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    Execute,
}

impl File {
    fn new(name: impl Into<String>, text: impl Into<String>, access: Access) -> Self {
        let name = name.into();
        Self { key: name.clone(), name, text: text.into(), access }
    }

    /// A script whose key has no suffix, as upstream names it.
    fn upstream(key: String, text: String, access: Access) -> Self {
        Self { name: format!("{key}.sh"), key, text, access }
    }

    /// Whether the service pod needs it.
    pub(super) fn is_of_services(&self) -> bool {
        self.name.starts_with("services-")
    }
}

/// All files, each key once, for a spec that was checked.
pub(super) fn files(model: &Model<'_>) -> Vec<File> {
    let view = model.spec.flux.view_name();
    let mut files = vec![
        File { key: view.to_owned(), name: "flux-init.sh".to_owned(), text: init(model), access: Access::Execute },
        File::new("hostlist", flux_files::hostlist(model), Access::Read),
        File::new("R", flux_files::resource_set(model), Access::Read),
        File::new("broker.toml", flux_files::broker_toml(model), Access::Read),
        File::new("ready.sh", ready(model), Access::Execute),
    ];
    files.extend(options::quorum_file(model).map(|text| File::new(QUORUM_KEY, text, Access::Read)));
    files.extend(runner::files(model));
    files.extend(sidecar::files(model));
    if model.spec.containers.iter().any(|container| container.diagnostics) {
        files.push(File::new("diagnose.sh", diagnose(model), Access::Execute));
    }
    files.extend(restful(model));
    files.extend(queue::file(model));
    files
}

fn restful(model: &Model<'_>) -> Option<File> {
    let restful = model.restful()?;
    let (port, nodes) = (restful.port().to_string(), model.rank_map.size().to_string());
    let secret = super::restful::secret_name(model.name, restful);
    let values = settings([
        ("viewbase", model.spec.flux.mount_path()),
        ("branch", restful.branch()),
        ("port", &port),
        ("nodes", &nodes),
        ("secret", &secret),
    ]);
    Some(File::new(RESTFUL_FILE, Parts::default().with("settings", values).fill(RESTFUL), Access::Execute))
}

fn init(model: &Model<'_>) -> String {
    let view = if model.spec.flux.container.disable { INIT_NO_VIEW } else { INIT_VIEW };
    Parts::default()
        .with("settings", settings([("viewbase", model.spec.flux.mount_path())]))
        .when(model.spec.flux.broker_config.is_none(), "ipv6", INIT_IPV6)
        .with("view", view)
        .fill(INIT)
}

fn ready(model: &Model<'_>) -> String {
    let mut values = settings([("viewbase", model.spec.flux.mount_path())]);
    if !model.spec.flux.container.disable {
        values += "export PATH=$PATH:$viewbase/view/bin\n";
    }
    let user = User::of(model.runner.container).map_or_else(|| AS_IT_IS.to_owned(), User::find);
    Parts::default().with("settings", values).with("paths", PATHS).with("user", user).with("joined", JOINED).fill(READY)
}

fn diagnose(model: &Model<'_>) -> String {
    Parts::default().with("settings", settings([("viewbase", model.spec.flux.mount_path())])).fill(DIAGNOSE)
}

/// A variable of `flux.environment`.
fn export((name, value): (&String, &String)) -> String {
    format!("export {name}={}", words::with_variables(value))
}

/// The parts of `environment.sh`: the same in every container of the pods.
fn environment(model: &Model<'_>) -> Parts {
    let flux = &model.spec.flux;
    let exports: Vec<String> = flux.environment.iter().map(export).collect();
    let python = flux.container.python_path.as_deref().unwrap_or_default();
    let values = settings([("_environment", exports.join("\n").as_str()), ("_python_path", python)]);
    let scheduler = "export FLUX_RC_EXTRA=$viewroot/etc/flux/rc1.d";
    let view = Parts::default().when(!flux.scheduler.is_simple(), "scheduler", scheduler).fill(ENVIRONMENT_VIEW);
    Parts::default().with("settings", values).when(!flux.container.disable, "view", view)
}
