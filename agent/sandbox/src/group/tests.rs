use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
};

use super::*;

/// Ten seconds at most: not a measurement, only the end of a test that fails.
fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    (0..500).any(|_| {
        let met = condition();
        if !met {
            thread::sleep(POLL);
        }
        met
    })
}

fn alive(id: u32) -> bool {
    let signal = format!("kill -s 0 {id}");
    Command::new("sh").args(["-c", &signal]).stderr(Stdio::null()).status().unwrap().success()
}

fn sleeper(group: &Group) -> Arc<Process> {
    group.spawn(Command::new("sleep").arg("1000")).unwrap()
}

#[test]
fn stopping_ends_the_members_and_removes_the_directory() {
    let directory = tempfile::tempdir().unwrap().keep();
    fs::write(directory.join("file"), "").unwrap();
    let group = Group::start(Duration::ZERO, Some(&directory)).unwrap();
    let (one, two) = (sleeper(&group), sleeper(&group));
    assert_eq!(one.exited().unwrap(), None);
    group.stop();
    assert!(one.exited().unwrap().is_some() && two.exited().unwrap().is_some());
    assert!(!alive(one.id()) && !alive(two.id()));
    assert!(!directory.exists());
}

#[test]
fn members_may_clean_up_within_the_grace_and_are_killed_after_it() {
    let directory = tempfile::tempdir().unwrap();
    let cleaned = directory.path().join("cleaned");
    let group = Group::start(Duration::from_secs(2), None).unwrap();
    let polite = format!("trap 'echo done > {}; exit 7' TERM; echo; while :; do sleep 0.05; done", cleaned.display());
    let mut traps = Vec::new();
    for script in [polite.as_str(), "trap '' TERM; echo; while :; do sleep 0.05; done"] {
        let (mut ready, output) = io::pipe().unwrap();
        traps.push(group.spawn(Command::new("sh").args(["-c", script]).stdout(output)).unwrap());
        ready.read_exact(&mut [0]).unwrap();
    }
    group.stop();
    assert_eq!(traps[0].exited().unwrap().unwrap().code(), Some(7));
    assert_eq!(traps[1].exited().unwrap().unwrap().code(), None, "ended by a signal");
    assert_eq!(fs::read_to_string(cleaned).unwrap(), "done\n");
}

#[test]
fn signals_reach_one_member_only() {
    let group = Group::start(Duration::ZERO, None).unwrap();
    let (one, two) = (sleeper(&group), sleeper(&group));
    group.signal(&one, Signal::Terminate).unwrap();
    assert!(eventually(|| one.exited().unwrap().is_some()));
    assert_eq!(two.exited().unwrap(), None);
    group.signal(&one, Signal::Stop).unwrap();
}

/// Not a test of its own: the process that [`a_killed_owner_takes_its_group_along`] kills.
#[test]
#[ignore = "started by another test"]
fn owner() {
    let Some(directory) = env::var_os("GROUP_TEST_DIRECTORY") else { return };
    let group = Group::start(Duration::ZERO, Some(Path::new(&directory))).unwrap();
    let script = "echo started $$; sleep 1000 & wait";
    let member = group.spawn(Command::new("sh").args(["-c", script])).unwrap();
    println!("member {}", member.id());
    let _ = io::stdin().read(&mut [0]);
}

#[test]
fn a_killed_owner_takes_its_group_along() {
    let directory = tempfile::tempdir().unwrap().keep();
    let mut owner = Command::new(env::current_exe().unwrap())
        .args(["--exact", "group::tests::owner", "--ignored", "--nocapture"])
        .env("GROUP_TEST_DIRECTORY", &directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut member = None;
    for line in BufReader::new(owner.stdout.take().unwrap()).lines().map_while(Result::ok) {
        // libtest prints the test's name in front of the first line.
        if let Some((_, id)) = line.rsplit_once("member ") {
            member = id.trim().parse::<u32>().ok();
        }
        if member.is_some() {
            break;
        }
    }
    let member = member.expect("the owner says whom it started");
    assert!(alive(member));
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert!(eventually(|| !alive(member)), "process {member} outlived its owner");
    assert!(eventually(|| !directory.exists()), "{} was left behind", directory.display());
}
