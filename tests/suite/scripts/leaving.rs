//! How a follower leaves the instance, and how it comes back.

use super::pod::Pod;

/// The broker of a follower, with rank 4, in the state of the files `state`, `jobs`, `drained`, `reason`.
const FOLLOWER: &str = r#"
case "$*" in
uptime) echo " 05:12:30 $(cat $ROOT/state) 3.5m,  owner root,  depth 0,  size 6$(cat $ROOT/drained 2>/dev/null)" ;;
"getattr rank") echo 4 ;;
"overlay status --rank=4") printf '%s\n' '4 lake-4: partial' '├─ 5 lake-5: full' '└─ 12 lake-12: offline' ;;
"resource drain --update "*) touch $ROOT/jobs; cat $ROOT/refused 2>/dev/null && exit 1 ;;
"resource drain -n -o {state}"*) echo drained; if (($(wc -l <$ROOT/jobs) < 2)); then echo draining; fi; echo >>$ROOT/jobs ;;
"resource drain -n -o {reason}"*) touch $ROOT/asked; cat $ROOT/reason; cat $ROOT/slow 2>/dev/null && sleep 2 ;;
start*) trap 'echo told >>$ROOT/calls; exit 0' TERM; touch $ROOT/up; while [[ ! -e $ROOT/over ]]; do sleep 0.1; done ;;
esac
exit 0
"#;

fn follower(state: &str, drain_seconds: u32) -> Pod {
    let pod =
        Pod::new(&format!("  size: 2\n  flux: {{drainSeconds: {drain_seconds}}}\n  containers: [{{cores: 1}}]\n"), 1);
    pod.init();
    pod.behave(FOLLOWER);
    pod.write("state", state);
    pod
}

/// Asks a follower to end, and tells what it did from then on, but for the questions to its own broker.
fn leave(pod: &Pod) -> Vec<String> {
    let mut running = pod.start("wait-0.sh");
    let _socket = pod.socket();
    pod.until("up", "");
    pod.write("calls", "");
    assert_eq!(running.terminate().code(), Some(143), "{}", pod.read("output"));
    let own = ["flux uptime", "flux getattr tbon.parent-endpoint", "flux module stats", "flux ping"];
    pod.calls().into_iter().filter(|call| !own.iter().any(|own| call.starts_with(own))).collect()
}

#[test]
fn a_follower_that_leaves_drains_its_part_of_the_tree_first() {
    let question = "flux resource drain -n -o \\{state\\} -i 4\\,5";
    assert_eq!(
        leave(&follower("run", 60)),
        [
            "flux getattr rank",
            "flux overlay status --rank=4",
            "flux resource drain --update 4\\,5 tributary:\\ lake-1\\ is\\ leaving",
            question,
            question,
            question,
            "told",
        ]
    );
}

#[test]
fn who_cannot_be_asked_is_not_waited_for() {
    for state in ["join", "shutdown"] {
        assert_eq!(leave(&follower(state, 60)), ["told"], "{state}");
    }
    let pod = follower("run", 60);
    pod.write("refused", "");
    assert_eq!(leave(&pod).len(), 4, "the drain is refused, and no question follows");
    assert_eq!(leave(&follower("run", 0)), ["told"], "drainSeconds: 0");
}

#[test]
fn who_answers_late_is_asked_again() {
    let pod = follower("run", 60);
    let late =
        "\"resource drain --update \"*) if [[ ! -e $ROOT/late ]]; then touch $ROOT/late; exec sleep 30; fi; touch";
    pod.behave(&FOLLOWER.replace("\"resource drain --update \"*) touch", late));
    let calls = leave(&pod);
    let drains = calls.iter().filter(|call| call.starts_with("flux resource drain --update"));
    assert_eq!((drains.count(), calls.last().unwrap().as_str()), (2, "told"), "{calls:?}");
}

#[test]
fn a_broker_that_ends_by_itself_is_not_waited_for() {
    let pod = follower("run", 600);
    pod.behave(&FOLLOWER.replace("echo draining; fi;", "touch $ROOT/over; sleep 0.5; fi; echo draining;"));
    assert!(!leave(&pod).contains(&"told".to_owned()), "the instance has ended meanwhile");
}

#[test]
fn jobs_that_take_longer_are_not_waited_for() {
    let pod = follower("run", 1);
    pod.behave(&FOLLOWER.replace("echo >>$ROOT/jobs", ":"));
    assert_eq!(leave(&pod).last().unwrap(), "told");
}

#[test]
fn a_rank_that_is_back_takes_jobs_again_unless_somebody_else_drained_it() {
    for (reason, undrained) in [("tributary: lake-1 is leaving", true), ("bad memory", false)] {
        let pod = follower("run", 60);
        pod.write("drained", ",  1 drained");
        pod.write("reason", &format!("{reason}\n"));
        let _socket = pod.socket();
        let mut running = pod.start("wait-0.sh");
        pod.until("calls", if undrained { "undrain" } else { "reason" });
        pod.write("refused", "");
        running.terminate();
        assert_eq!(pod.calls().contains(&"flux resource undrain 4".to_owned()), undrained, "{reason}");
    }
}

#[test]
fn a_rank_that_leaves_as_it_comes_back_takes_no_more_jobs() {
    let pod = follower("run", 60);
    pod.write("drained", ",  1 drained");
    pod.write("reason", "tributary: lake-1 is leaving\n");
    pod.write("slow", "");
    let _socket = pod.socket();
    let mut running = pod.start("wait-0.sh");
    pod.until("asked", "");
    assert_eq!(running.terminate().code(), Some(143), "{}", pod.read("output"));
    let calls = pod.calls();
    let of = |what: &str| calls.iter().rposition(|call| call.starts_with(what));
    assert!(of("flux resource undrain 4") < of("flux resource drain --update"), "{calls:?}");
    assert!(of("flux resource undrain 4").is_some(), "{calls:?}");
}
