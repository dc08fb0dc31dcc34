//! `agentctl federation init|issue`: identities, made offline. Nothing here speaks to a cluster.

use std::io;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use tributary::clock::{Clock, SystemClock};
use tributary::federation::identity::files::{Existing, WriteError};
use tributary::federation::identity::{AUTHORITY_KEY, Authority, CERTIFICATE, IssueError, PRIVATE_KEY, TRUST_BUNDLE};

use crate::cli::{Federation, FederationInit, FederationIssue};
use crate::error::{Failure, Result};
use crate::output;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Runs `agentctl federation …`.
pub(crate) fn run(command: Federation) -> Result<()> {
    let now = SystemClock::start().wall();
    let text = match command {
        Federation::Init(init) => run_init(&init, now)?,
        Federation::Issue(issue) => run_issue(&issue, now)?,
    };
    output::print(&text)
}

/// Makes and writes an authority; returns what was done, for people.
pub(crate) fn run_init(init: &FederationInit, now: Timestamp) -> Result<String> {
    let what = || format!("failed to make the federation {:?}", init.name);
    let authority = Authority::create(&init.name, now).map_err(|error| refused(what(), error))?;
    authority.write(&init.out, existing(init.force)).map_err(|error| not_written(what(), error))?;
    Ok(format!(
        "federation {name}: {certificate} and {key} written, valid until {until}\n\
         keep {AUTHORITY_KEY} where identities are issued; no agent needs it\n",
        name = authority.trust_domain(),
        certificate = place(&init.out, TRUST_BUNDLE),
        key = place(&init.out, AUTHORITY_KEY),
        until = date(authority.not_after()),
    ))
}

/// Issues and writes the identity of a cluster; returns what was done, for people.
pub(crate) fn run_issue(issue: &FederationIssue, now: Timestamp) -> Result<String> {
    let what = || format!("failed to issue an identity for the cluster {:?}", issue.cluster);
    let authority = Authority::load(&issue.ca).map_err(|error| refused(what(), error))?;
    let validity = DAY * issue.days;
    let identity = authority.issue(&issue.cluster, now, validity).map_err(|error| refused(what(), error))?;
    identity.write(&issue.out, existing(issue.force)).map_err(|error| not_written(what(), error))?;
    Ok(format!(
        "{id}: {certificate}, {key} and {bundle} written, valid until {until}\n",
        id = identity.id(),
        certificate = place(&issue.out, CERTIFICATE),
        key = place(&issue.out, PRIVATE_KEY),
        bundle = place(&issue.out, TRUST_BUNDLE),
        until = date(identity.not_after()),
    ))
}

fn existing(force: bool) -> Existing {
    if force { Existing::Replace } else { Existing::Refuse }
}

fn refused(what: String, error: IssueError) -> Failure {
    let hint = match &error {
        IssueError::Name(_) => "choose a name of that form, e.g. --name research or --cluster east",
        IssueError::Unreadable { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            "make an authority first, as in `agentctl federation init --name river --out ca`, and name it: --ca ca"
        }
        IssueError::Unreadable { .. } => "may you read the authority's files? Its key is for its owner only",
        IssueError::Unusable { .. } => {
            "--ca names a directory that `agentctl federation init --help` speaks of: ca.crt and ca.key must be of one pair"
        }
        IssueError::BeyondAuthority { .. } => "ask for less with --days N",
        IssueError::Time(_) => "is the clock of this machine right?",
        IssueError::Sign(_) => {
            "the authority's files may be damaged; a new one is made as `agentctl federation init --help` says"
        }
    };
    Failure::new(what).because(error).hint(hint)
}

fn not_written(what: String, error: WriteError) -> Failure {
    let hint = match &error {
        WriteError::Exists(_) => {
            "name another directory with --out, or replace what is there with --force (whoever uses it now needs the \
             new one then)"
        }
        WriteError::Io { .. } => "name a directory that you may write with --out",
    };
    Failure::new(what).because(error).hint(hint)
}

fn place(dir: &Path, file: &str) -> String {
    dir.join(file).display().to_string()
}

fn date(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d").to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    use tributary::federation::identity::Identity;

    use super::*;

    fn now() -> Timestamp {
        "2025-06-01T12:00:00Z".parse().unwrap()
    }

    fn init(out: PathBuf) -> FederationInit {
        FederationInit { name: "river".into(), out, force: false }
    }

    fn issue(ca: PathBuf, out: PathBuf) -> FederationIssue {
        FederationIssue { ca, cluster: "east".into(), out, days: 365, force: false }
    }

    /// Temporary paths differ from run to run.
    fn shown(failure: &Failure, dir: &Path) -> String {
        failure.to_string().replace(&dir.display().to_string(), "TMP")
    }

    #[test]
    fn an_authority_and_an_identity_are_written_and_usable() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, out) = (dir.path().join("ca"), dir.path().join("east"));
        let text =
            run_init(&init(ca.clone()), now()).unwrap() + &run_issue(&issue(ca.clone(), out.clone()), now()).unwrap();
        insta::assert_snapshot!(text.replace(&dir.path().display().to_string(), "TMP"));

        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(ca.join("ca.key")), mode(out.join("tls.key"))), (0o600, 0o600));
        let names = |dir: &Path| {
            let mut names: Vec<_> =
                fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&ca), ["ca.crt", "ca.key"]);
        assert_eq!(names(&out), ["ca.crt", "tls.crt", "tls.key"]);
        let identity = Identity::from_directory(&out, "east", now()).unwrap();
        assert_eq!(identity.id().to_string(), "spiffe://river/cluster/east");
    }

    #[test]
    fn nothing_is_replaced_unless_forced() {
        let dir = tempfile::tempdir().unwrap();
        let (ca, out) = (dir.path().join("ca"), dir.path().join("east"));
        run_init(&init(ca.clone()), now()).unwrap();
        run_issue(&issue(ca.clone(), out.clone()), now()).unwrap();
        let read = |path: &Path| fs::read_to_string(path).unwrap();
        let (key, certificate) = (read(&ca.join("ca.key")), read(&out.join("tls.crt")));

        insta::assert_snapshot!("init_refuses", shown(&run_init(&init(ca.clone()), now()).unwrap_err(), dir.path()));
        let refused = run_issue(&issue(ca.clone(), out.clone()), now()).unwrap_err();
        insta::assert_snapshot!("issue_refuses", shown(&refused, dir.path()));
        assert_eq!((read(&ca.join("ca.key")), read(&out.join("tls.crt"))), (key.clone(), certificate.clone()));

        run_init(&FederationInit { force: true, ..init(ca.clone()) }, now()).unwrap();
        run_issue(&FederationIssue { force: true, ..issue(ca.clone(), out.clone()) }, now()).unwrap();
        assert_ne!(read(&ca.join("ca.key")), key);
        assert_ne!(read(&out.join("tls.crt")), certificate);
    }

    #[test]
    fn no_name_is_issued_that_an_agent_refuses() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        run_init(&init(ca.clone()), now()).unwrap();
        let (longest, longer) = ("a".repeat(63), "a".repeat(64));
        for (name, good) in [
            ("east-1", true),
            ("1east", true),
            (&longest, true),
            (&longer, false),
            ("east.example", false),
            ("East", false),
            ("-east", false),
            ("east-", false),
            ("", false),
        ] {
            let identity = FederationIssue { cluster: name.into(), ..issue(ca.clone(), dir.path().join(name)) };
            let config = tributary::config::Config::from_toml(&format!("[cluster]\nname = {name:?}\n"));
            assert_eq!((run_issue(&identity, now()).is_ok(), config.is_ok()), (good, good), "{name:?}");
        }
    }

    #[test]
    fn every_error_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let ca = dir.path().join("ca");
        run_init(&init(ca.clone()), now()).unwrap();
        let broken = dir.path().join("broken");
        run_init(&init(broken.clone()), now()).unwrap();
        fs::write(broken.join("ca.key"), "no key").unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let out = dir.path().join("out");

        let failures = [
            run_init(&FederationInit { name: "Not A Name".into(), ..init(out.clone()) }, now()),
            run_init(&init(dir.path().join("file/below")), now()),
            run_issue(&issue(dir.path().join("nowhere"), out.clone()), now()),
            run_issue(&issue(broken, out.clone()), now()),
            run_issue(&FederationIssue { cluster: "East!".into(), ..issue(ca.clone(), out.clone()) }, now()),
            run_issue(&FederationIssue { days: 3651, ..issue(ca, out.clone()) }, now()),
        ];
        let texts: Vec<_> = failures.map(|failure| shown(&failure.unwrap_err(), dir.path())).into();
        assert!(texts.iter().all(|text| text.contains("hint: ")));
        insta::assert_snapshot!(texts.join("\n\n---\n\n"));
        assert!(!out.exists(), "nothing is written by halves");
    }
}
