//! The user's own pieces of shell. Each is a file of its own that the scripts read with `.`: its quotes, dollar signs and
//! line feeds cannot touch the script around it, and what it exports stays.

use tributary_api::minicluster::Container;

use super::escaped::unescaped;
use super::program::CUSTOM_SCRIPT;
use super::{Access, File, OPERATOR_DIR};

/// A place in a script where the user's shell runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hook {
    Init,
    Pre,
    BrokerPre,
    WorkerPre,
    ServicePre,
    Command,
    Post,
}

/// The shell of one container.
#[derive(Clone, Copy)]
pub(super) struct Hooks<'a> {
    /// In front of file names: empty, or `services-` in the service pod.
    pub(super) prefix: &'static str,
    /// Position of the container in its list.
    pub(super) index: usize,
    pub(super) container: &'a Container,
    /// `logging.quiet`.
    pub(super) quiet: bool,
}

impl Hooks<'_> {
    /// The line that runs it, or nothing.
    pub(super) fn line(&self, hook: Hook) -> String {
        let silence = match hook {
            // Why one of them fails is told.
            Hook::Init | Hook::Pre | Hook::BrokerPre | Hook::WorkerPre | Hook::ServicePre if self.quiet => {
                " >/dev/null"
            }
            _ => "",
        };
        match self.text(hook) {
            Some(_) => format!(". {OPERATOR_DIR}/{}{silence}", self.file_name(hook)),
            // A script without a command is the command.
            None if hook == Hook::Command && self.container.commands.script.is_some() => {
                format!("/bin/bash {CUSTOM_SCRIPT}")
            }
            None => String::new(),
        }
    }

    /// The line that puts `commands.script` where commands find it, or nothing.
    pub(super) fn script_line(&self) -> String {
        match self.container.commands.script {
            Some(_) => {
                let source = format!("{OPERATOR_DIR}/{}", self.script_name());
                format!("cp -f {source} {CUSTOM_SCRIPT} && chmod 0755 {CUSTOM_SCRIPT}")
            }
            None => String::new(),
        }
    }

    /// The files behind these places, and the script.
    pub(super) fn files(&self, hooks: &[Hook]) -> Vec<File> {
        let file = |hook: &Hook| self.text(*hook).map(|text| File::new(self.file_name(*hook), text, Access::Read));
        let script = self.container.commands.script.as_ref();
        let script = script.map(|text| File::new(self.script_name(), unescaped(text), Access::Execute));
        hooks.iter().filter_map(file).chain(script).collect()
    }

    fn text(&self, hook: Hook) -> Option<String> {
        let Container { commands, command, pre_command, .. } = self.container;
        let text = match hook {
            Hook::Init => commands.init.as_deref(),
            Hook::Pre => {
                let pieces: Vec<_> = pre_command.as_deref().into_iter().chain(commands.pre.as_deref()).collect();
                return (!pieces.is_empty()).then(|| pieces.join("\n") + "\n");
            }
            Hook::BrokerPre => commands.broker_pre(),
            Hook::WorkerPre => commands.worker_pre(),
            Hook::ServicePre => commands.service_pre.as_deref(),
            Hook::Command => command.as_deref(),
            Hook::Post => commands.post.as_deref(),
        };
        text.map(|text| format!("{text}\n"))
    }

    fn file_name(&self, hook: Hook) -> String {
        let name = match hook {
            Hook::Init => "init",
            Hook::Pre => "pre",
            Hook::BrokerPre => "broker-pre",
            Hook::WorkerPre => "worker-pre",
            Hook::ServicePre => "service-pre",
            Hook::Command => "command",
            Hook::Post => "post",
        };
        format!("{}{name}-{}.sh", self.prefix, self.index)
    }

    fn script_name(&self) -> String {
        format!("{}script-{}.sh", self.prefix, self.index)
    }
}
