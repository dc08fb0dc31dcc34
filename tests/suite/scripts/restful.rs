//! The RESTful server on the lead: where it comes from, what it is told, and what is printed.

use std::net::TcpListener;
use std::process::Command;

use tributary_tests::python;

use super::pod::{Pod, RUN_PROGRAM};

/// A python that says what it is asked, without the modules that the file `modules` does not name.
const PYTHON: &str = r#"#!/bin/bash
case "$*" in
"-c import secrets;"*) echo signing; exit ;;
"-c import "*) grep -qx "${2#import }" "$ROOT/modules"; exit ;;
"-m pip --version") exit ;;
esac
{
    echo "${PWD##*/}: python$(printf ' %q' "$@")"
    case "$*" in
    *"--port="*) env | grep -E '^FLUX_(USER|TOKEN|SECRET_KEY|REQUIRE_AUTH|NUMBER_NODES|TOKEN_SIGNING_KEY|RESTFUL_USERS)=' | sort ;;
    esac
} | sed 's|/tmp/tmp\.[A-Za-z0-9]*|TMP|g' >>"$ROOT/calls"
"#;

/// A git that clones the folder `branch`.
const GIT: &str = r#"#!/bin/bash
echo "git ${*:1:6}" >>"$ROOT/calls"
cp -R "$ROOT/branch" "${@: -1}"
"#;

const SPEC: &str = "  size: 2\n  flux: {container: {disable: true}}\n  containers: [{image: ubuntu}]\n";

fn lead(restful: &str, modules: &[&str]) -> Pod {
    let mut pod = Pod::new(&format!("{SPEC}  fluxRestful: {restful}\n"), 0);
    // What the machine itself has stays outside.
    for name in ["python3", "python"] {
        pod.program(&format!("bin/{name}"), PYTHON);
    }
    pod.program("bin/git", GIT);
    pod.write("modules", &(modules.join("\n") + "\n"));
    let tmp = pod.path("tmp").display().to_string();
    for (name, value) in [
        ("TMPDIR", tmp.as_str()),
        ("FLUX_USER", "flux"),
        ("FLUX_TOKEN", "s3cret"),
        ("FLUX_SECRET_KEY", "shared"),
        ("FLUX_RESTFUL_USERS", "ann -carrot\nbob turnip\n"),
    ] {
        pod.variable(name, value);
    }
    pod
}

/// Runs it: what was called after the broker was started, with the words for the temporary folder.
fn served(pod: &Pod) -> Vec<String> {
    let (code, text) = pod.lead();
    assert_eq!(code, Some(0), "{text}");
    for secret in ["s3cret", "shared", "carrot", "turnip", "signing"] {
        assert!(!text.contains(secret), "{text}");
    }
    assert!(text.contains("its user and token are in the Secret lake-restful."), "{text}");
    let calls = pod.calls();
    let broker = calls.iter().position(|call| call.starts_with("flux start ")).unwrap();
    assert!(
        calls[broker].ends_with(" /bin/bash /flux_operator/finish.sh /bin/bash /flux_operator/restful.sh"),
        "{calls:?}"
    );
    let served = calls[broker + 1..].iter().filter(|call| !call.starts_with("flux exec -r "));
    served.cloned().collect()
}

/// What the server finds in its environment: what `flux-restful-client` asks for is all there, and only that.
const ENVIRONMENT: [&str; 6] = [
    "FLUX_NUMBER_NODES=2",
    "FLUX_REQUIRE_AUTH=true",
    "FLUX_SECRET_KEY=shared",
    "FLUX_TOKEN=s3cret",
    "FLUX_TOKEN_SIGNING_KEY=signing",
    "FLUX_USER=flux",
];

#[test]
fn an_installed_server_is_started_with_its_users() {
    let calls = served(&lead("{}", &["flux", "flux_restful.cli"]));
    let place = calls[0].split_once(':').unwrap().0.to_owned();
    let expected = [
        "-m flux_restful.cli init",
        "-m flux_restful.cli add-user -- ann -carrot",
        "-m flux_restful.cli add-user -- bob turnip",
        "-m flux_restful.cli serve --host=0.0.0.0 --port=5000",
    ];
    let expected = expected.map(|words| format!("{place}: python {words}"));
    assert_eq!(calls, [expected.to_vec(), ENVIRONMENT.map(str::to_owned).to_vec()].concat());
}

#[test]
fn a_server_of_the_image_is_started_from_a_copy_that_can_be_written() {
    for folder in ["work", "code"] {
        let pod = lead("{port: 5050}", &["flux"]);
        for file in ["app/main.py", "app/db/init_db.py", "alembic.ini"] {
            pod.write(&format!("{folder}/{file}"), "");
        }
        let calls = served(&pod);
        let expected = [
            "-m alembic.config revision --autogenerate -m Create\\ initial\\ tables",
            "-m alembic.config upgrade head",
            "app/db/init_db.py init",
            "app/db/init_db.py add-user -- ann -carrot",
            "app/db/init_db.py add-user -- bob turnip",
            "-m uvicorn app.main:app --host=0.0.0.0 --port=5050",
        ];
        assert_eq!(calls[..6], expected.map(|words| format!("server: python {words}")), "{folder}");
        assert_eq!(calls[6..], ENVIRONMENT, "{folder}");
    }
}

#[test]
fn the_first_servers_know_no_database() {
    let pod = lead("{}", &["flux"]);
    pod.write("code/app/main.py", "");
    assert_eq!(served(&pod)[0], "server: python -m uvicorn app.main:app --host=0.0.0.0 --port=5000");
}

#[test]
fn another_branch_is_fetched_and_installed_beside_the_image() {
    let install = "python -m pip install --quiet --no-cache-dir --disable-pip-version-check --target TMP/packages";
    for (file, what, first) in [
        ("flux_restful/cli.py", " TMP/server", "-m flux_restful.cli init"),
        ("app/db/init_db.py", " --requirement TMP/server/requirements.txt bcrypt\\<5", "app/db/init_db.py init"),
    ] {
        let pod = lead("{branch: next}", &["flux", "flux_restful.cli"]);
        pod.write(&format!("branch/{file}"), "");
        let calls = served(&pod);
        assert_eq!(calls[0], "git clone --quiet --depth 1 --branch next");
        assert_eq!(calls[1], format!("work: {install}{what}"));
        assert!(calls[2].ends_with(first), "{calls:?}");
    }
}

#[test]
fn what_the_image_lacks_is_said() {
    let pod = lead("{}", &[]);
    let (code, text) = pod.lead();
    assert_eq!(code, Some(1));
    assert!(text.contains("needs a python3 with the bindings of Flux"), "{text}");
}

/// The server and the client that users install.
const PACKAGES: [&str; 2] = ["flux-restful==1.1.0", "flux-restful-client==0.2.1"];

/// So much of Flux's bindings as a list of jobs needs.
const BINDINGS: [(&str, &str); 4] = [
    ("flux/__init__.py", "class Flux:\n    def attr_get(self, name):\n        return '2'\n"),
    ("flux/job/__init__.py", JOB_LIST),
    ("flux/job/kvslookup.py", ""),
    ("flux/resource.py", ""),
];
const JOB_LIST: &str = "
class Jobs:
    def get(self):
        return {'jobs': [{'id': 7}]}

    def get_jobs(self):
        return self.get()['jobs']


def job_list(handle, userid=None):
    return Jobs()
";

/// Asks as its user does, who has the variables from the Secret.
const CLIENT: &str = "
from flux_restful_client.main.client import FluxRestfulClient
print(FluxRestfulClient(attempts=0).jobs())
";

/// The broker becomes the server, which so hears of signals, and ends with this test however that ends.
const EXEC: &str = r#"then exec "${ends_with_us[@]}" "$@""#;
const ENDS_WITH_US: &str = "$(command -v setpriv >/dev/null && echo setpriv --pdeathsig=TERM || echo env)";

#[test]
fn the_server_and_the_client_of_pypi_understand_each_other() {
    let Some(packages) = python::packages(&PACKAGES) else { return };
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut pod = lead(&format!("{{port: {port}}}"), &[]);
    for name in ["python3", "python", "git"] {
        std::fs::remove_file(pod.path(&format!("bin/{name}"))).unwrap();
    }
    for (file, text) in BINDINGS {
        pod.write(&format!("bindings/{file}"), text);
    }
    let path = std::env::join_paths([pod.path("bindings"), packages]).unwrap().into_string().unwrap();
    pod.variable("PYTHONPATH", &path);
    pod.variable("FLUX_RESTFUL_USERS", "ann -carrot\n");
    pod.behave(&format!("ends_with_us=({ENDS_WITH_US})\n{}", RUN_PROGRAM.replace("then \"$@\"; exit $?", EXEC)));
    pod.init();
    let mut running = pod.start("wait-0.sh");
    // Twice as long as for a script: python reads some hundred files for each step.
    pod.until("output", "listens on port");
    pod.until("output", "Uvicorn running on");

    let ask = |user: &str, token: &str, key: &str| {
        let mut python = Command::new("python3");
        python.args(["-c", CLIENT]).env("PYTHONPATH", &path).env("FLUX_USER", user).env("FLUX_TOKEN", token);
        python.env("FLUX_SECRET_KEY", key).env("FLUX_RESTFUL_HOST", format!("http://127.0.0.1:{port}"));
        let output = python.output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for (user, token) in [("flux", "s3cret"), ("ann", "-carrot")] {
        let (good, text) = ask(user, token, "shared");
        assert!(good && text.contains("'id': 7"), "{user}: {text}\n{}", pod.read("output"));
    }
    for (user, token, key) in [("flux", "-carrot", "shared"), ("ann", "-carrot", "other"), ("eve", "s3cret", "shared")]
    {
        let (_, text) = ask(user, token, key);
        assert!(!text.contains("'id': 7"), "{user}: {text}");
    }
    running.terminate();
    let printed = pod.read("output");
    for secret in ["s3cret", "shared\n", "-carrot"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}
