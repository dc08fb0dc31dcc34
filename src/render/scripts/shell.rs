//! What a person who connects to a pod of a MiniCluster runs there: `agentctl shell`.
//!
//! It is no boot file: it is sent with the request, and finds the socket where the boot files put it.

use tributary_api::minicluster::{MiniCluster, RunnerError};

use super::template::{Parts, settings};
use super::user::User;
use super::{AS_IT_IS, PATHS};

const SHELL: &str = include_str!("shell.sh");

/// The words that run `command` (none: bash) in the container of Flux, as the user that Flux runs as, with `PATH` and
/// `FLUX_URI` set. `environment` is set besides, such as `TERM`.
///
/// # Errors
/// No container runs Flux.
pub fn shell(
    mini_cluster: &MiniCluster,
    environment: &[(&str, &str)],
    command: &[String],
) -> Result<Vec<String>, RunnerError> {
    let runner = mini_cluster.spec.runner()?.container;
    let exports: String = environment.iter().map(|(name, _)| format!("export {name}\n")).collect();
    let values = settings([("viewbase", mini_cluster.spec.flux.mount_path())]) + &settings(environment.iter().copied());
    let user = User::of(runner).map_or_else(|| AS_IT_IS.to_owned(), User::find);
    // Its own paths are among them.
    let ours: String = mini_cluster.spec.flux.environment.iter().map(|one| super::export(one) + "\n").collect();
    let script = Parts::default()
        .with("settings", values + &exports)
        .with("paths", PATHS)
        .with("environment", ours)
        .with("user", user)
        .fill(SHELL);
    // The name that bash gives itself in messages follows the script.
    let words = ["/bin/bash", "-c", &script, "agentctl"].map(str::to_owned);
    Ok(words.into_iter().chain(command.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    fn object(container: serde_json::Value, path: &str) -> MiniCluster {
        let value = serde_json::json!({"metadata": {"name": "lake"}, "spec": {"containers": [container],
            "flux": {"container": {"mountPath": path}}}});
        serde_json::from_value(value).unwrap()
    }

    /// Runs the words as a kubelet would, with everything of the pod below `path`.
    fn run(path: &str, command: &[&str]) -> (Option<i32>, String) {
        let command: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        let words = shell(&object(serde_json::json!({"image": "app"}), path), &[("TERM", "vt100")], &command).unwrap();
        let output = Command::new(&words[0]).args(&words[1..]).env_remove("FLUX_URI").output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    }

    #[test]
    fn a_command_finds_flux_and_its_exit_code_is_the_answer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_str().unwrap();
        let (code, text) = run(path, &["true"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("no socket yet"), "{text}");

        let run_directory = directory.path().join("config/run/flux");
        std::fs::create_dir_all(&run_directory).unwrap();
        let _socket = UnixListener::bind(run_directory.join("local")).unwrap();
        // A container beside Flux was the last one to write the first of them.
        std::fs::write(directory.path().join("flux-view.sh"), "export PATH=/beside:$PATH SITE='a b'\n").unwrap();
        std::fs::write(run_directory.join("paths"), format!("PATH=/view/bin:{}\nLD_LIBRARY_PATH=/mpi\n", env!("PATH")))
            .unwrap();
        let script = "echo \"$PATH|$FLUX_URI|$SITE|$TERM|$1\"; exit 7";
        let (code, text) = run(path, &["bash", "-c", script, "x", "it's one word"]);
        assert_eq!(code, Some(7));
        assert!(text.starts_with("/view/bin:"), "{text}");
        assert!(text.ends_with(&format!("|local://{path}/config/run/flux/local|a b|vt100|it's one word\n")), "{text}");
    }

    #[test]
    fn it_becomes_the_user_that_flux_runs_as() {
        let words =
            shell(&object(serde_json::json!({"fluxUser": {"name": "lab", "uid": 1500}}), "/mnt/flux"), &[], &[]);
        insta::assert_snapshot!(words.unwrap()[2]);
    }
}
