//! Flux as another user than the container's. Root's tools are stand-ins that record what they are asked.

use super::pod::{Pod, RUN_PROGRAM};

/// Knows root, whoever is in the passwd of the pod, and one group of a volume.
const ID: &str = r#"#!/bin/bash
case "$*" in
-u) cat $ROOT/me ;;
-un) echo root ;;
-G) echo "0 2000" ;;
*)
    IFS=: read -r name _ uid gid _ < <(grep "^${!#}:" "$ROOT/etc/passwd") || exit 1
    if [[ $1 == -u ]]; then echo "$uid"; elif [[ $1$name == -Gdocker ]]; then echo "$gid 999"; else echo "$gid"; fi
    ;;
esac
"#;

const SETPRIV: &str = r#"#!/bin/bash
export AS="as"
while [[ $1 == --* ]]; do AS+=" $1"; shift; done
export AS+=": "
exec "$@"
"#;

/// The image's users are `passwd`; the process is `me`.
fn pod(container: &str, me: &str, passwd: &str) -> Pod {
    let pod = Pod::new(&format!("  size: 2\n  containers: [{{cores: 1, command: 'true', {container}}}]\n"), 0);
    pod.program("bin/id", ID);
    pod.program("bin/setpriv", SETPRIV);
    pod.program("bin/chown", "#!/bin/bash\necho \"chown $*\" >>$ROOT/calls\n");
    pod.write("me", me);
    pod.write("etc/passwd", passwd);
    pod
}

const ROOT: &str = "root:x:0:0::/root:/bin/bash\n";

/// The lead's calls in front of the options of its broker.
fn calls(pod: &Pod) -> Vec<String> {
    let calls = pod.calls();
    calls.iter().map(|call| call.split(" -o --config").next().unwrap().to_owned()).collect()
}

#[test]
fn a_user_that_the_image_does_not_have_is_made_and_owns_what_flux_writes() {
    let pod = pod("fluxUser: {name: river, uid: 1002}, commands: {pre: 'flux in pre'}", "0", ROOT);
    pod.behave(&format!("echo $HOME $USER >$ROOT/who\n{RUN_PROGRAM}"));
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(
        pod.read("etc/passwd"),
        format!("{ROOT}river:x:1002:1002::/home/river:/bin/bash\n")
            .replace("/home", &format!("{}/home", pod.path("").display()).replace("//", "/"))
    );
    assert_eq!(pod.read("etc/group"), "river:x:1002:\n");
    let user = "as --reuid=1002 --regid=1002 --groups=1002,2000: ";
    let config = "/mnt/flux/config";
    assert_eq!(
        calls(&pod),
        [
            "flux in pre".to_owned(),
            "chown -R 1002:1002 /home/river".to_owned(),
            format!(
                "chown -R 1002:1002 {config}/curve/curve.cert {config}/run/flux {config}/var/lib/flux /tmp/fluxout"
            ),
            format!("{user}flux start"),
            format!("{user}flux submit -n1 --quiet --watch true"),
            format!("{user}flux exec -r 1 touch {config}/run/flux/ended"),
        ],
        "the shell of the user's own stays root's, Flux and its jobs do not: {text}"
    );
    assert!(pod.read("who").ends_with("/home/river river\n"));
    // A restarted container finds the user that it made.
    assert_eq!(pod.run("wait-0.sh").0, Some(0));
    assert_eq!(pod.read("etc/passwd").lines().count(), 2);
}

/// The danger: `logs` is the volume of a group, and each pod makes all of its files this user's.
#[test]
fn a_directory_for_output_that_the_user_may_write_to_keeps_its_owners() {
    for (test, own) in [("true", None), ("false", Some("chown 1002:1002 /data"))] {
        let pod = pod("fluxUser: {name: river, uid: 1002}, logs: /data", "0", ROOT);
        std::fs::create_dir_all(pod.path("data")).unwrap();
        pod.program("bin/test", &format!("#!/bin/bash\n[[ $2 != */data ]] || {test}\n"));
        let (code, text) = pod.lead();
        assert_eq!(code, Some(0), "{text}");
        let calls = calls(&pod);
        assert_eq!(calls.iter().find(|call| call.contains("/data")).map(String::as_str), own);
    }
}

#[test]
fn the_images_own_user_keeps_its_id_and_home() {
    let pod = pod("fluxUser: {name: docker}", "0", &format!("{ROOT}docker:x:77:78::/srv:/bin/sh\n"));
    std::fs::create_dir_all(pod.path("srv")).unwrap();
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(calls(&pod)[1], "as --reuid=77 --regid=78 --groups=78,999,2000: flux start", "{text}");
}

#[test]
fn without_setpriv_chroot_does_it() {
    let pod = pod("fluxUser: {uid: 1003}", "0", ROOT);
    std::fs::remove_file(pod.path("bin/setpriv")).unwrap();
    for tool in [
        "bash", "cat", "chmod", "cp", "env", "grep", "ln", "mkdir", "mv", "rm", "sed", "sleep", "test", "touch", "true",
    ] {
        let found = ["/usr/bin", "/bin"].map(|folder| std::path::Path::new(folder).join(tool));
        let found = found.into_iter().find(|path| path.exists()).unwrap();
        std::os::unix::fs::symlink(found, pod.path("bin").join(tool)).unwrap();
    }
    pod.program("bin/chroot", &SETPRIV.replace("exec", "shift; exec"));
    let pod = pod.without_the_machine();
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    let expected = "as --userspec=1003:1003 --groups=1003,2000 --skip-chdir: flux start";
    assert!(calls(&pod).contains(&expected.to_owned()), "{:?} {text}", calls(&pod));
}

#[test]
fn run_flux_as_root_wins_and_nothing_changes_its_owner() {
    let pod = pod("fluxUser: {name: river}, commands: {runFluxAsRoot: true}", "0", ROOT);
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(calls(&pod)[0], "flux start");
    assert_eq!(pod.read("etc/passwd"), ROOT);
}

#[test]
fn only_root_becomes_somebody_else() {
    let own = format!("{ROOT}river:x:1002:1002::/home/river:/bin/bash\n");
    let pod = pod("fluxUser: {name: river}", "1002", &own);
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(calls(&pod)[0], "flux start", "it is this user already");
}

#[test]
fn the_readiness_probe_asks_as_the_same_user() {
    let pod = pod("fluxUser: {name: river}", "0", ROOT);
    let _socket = pod.socket();
    pod.behave("echo ' 05:12:30 run 3.5m,  owner river,  depth 0,  size 4'");
    assert_eq!(pod.run("ready.sh").0, Some(1), "there is no such user yet");
    pod.write("etc/passwd", "river:x:1000:1000::/:/bin/sh\n");
    assert_eq!(pod.run("ready.sh").0, Some(0));
    assert_eq!(pod.calls(), ["as --reuid=1000 --regid=1000 --groups=1000,2000: flux uptime"]);
    assert_eq!(pod.run("ready.sh still").0, Some(0));
    let still = "as --reuid=1000 --regid=1000 --groups=1000,2000: flux module stats heartbeat";
    assert_eq!(pod.calls().last().unwrap(), still);
}
