//! The program itself, once for each exit code, and where it says what.
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

fn agentctl(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentctl"));
    command.args(arguments).env_remove("TRIBUTARY_ENDPOINT").env("KUBECONFIG", "/nowhere/kubeconfig");
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn done_is_0_and_data_goes_to_standard_output() {
    let (code, out, said) = agentctl(&["version", "--client", "-o", "json"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(out.contains("\"kind\": \"Version\"") && out.contains(env!("CARGO_PKG_VERSION")), "{out}");
    // Whoever asks for help gets it as data.
    let (code, out, said) = agentctl(&["help", "peer"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(out.contains("Usage: agentctl peer "), "{out}");
}

#[test]
fn failed_is_1_with_a_hint_on_standard_error() {
    let (code, out, said) = agentctl(&["peers"]);
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(said.starts_with("error: ") && said.contains("\n\nhint: "), "{said}");
    assert!(!said.contains('\x1b'), "no colour without a terminal: {said:?}");
}

#[test]
fn misused_is_2_and_standard_output_stays_empty() {
    for arguments in [&["peer", "evict"][..], &[]] {
        let (code, out, said) = agentctl(arguments);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(said.contains("Usage: agentctl"), "{said}");
    }
}

/// As kubectl asks: by another name of the same program.
#[test]
fn as_kubectls_completion_it_answers() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agentctl"));
    command.arg0("kubectl_complete-tributary").args(["identity", "r"]);
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"rotate\n:4\n"[..]));
}
