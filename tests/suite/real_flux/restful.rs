//! The Flux RESTful server on a real lead broker, asked with the client that its users have.

use tributary::render::Context;
use tributary_tests::python;

use super::pod::Pod;
use super::scripts::{Side, certificate, mini_cluster, wait_until_ready, world};

/// The server, which brings a client of its own, and the client that users had before.
const PACKAGES: [&str; 2] = ["flux-restful==1.1.0", "flux-restful-client==0.2.1"];

/// Submits a job over both brokers and prints what it wrote; then one that fails, and what became of it.
const CLIENT: &str = r#"
import importlib, sys, time

client = importlib.import_module(sys.argv[1] + '.main.client').FluxRestfulClient(attempts=0)
# The older one loses what it submits when it has to authenticate first.
if sys.argv[1] == 'flux_restful_client':
    client.jobs()

def run(command, **options):
    answer = client.submit(command, **options)
    assert 'id' in answer, answer
    while True:
        job = client.jobs(answer['id'])
        if job.get('state') == 'INACTIVE':
            return answer['id'], job
        time.sleep(0.2)

job, end = run('hostname', num_nodes=2, num_tasks=2)
print('end', end['returncode'])
for line in sorted(client.output(job)['Output']):
    print('line', line.strip())
job, end = run('false')
print('end', end['returncode'])
"#;

#[test]
fn jobs_of_the_restful_client_run_on_all_brokers() {
    let Some(world) = world(&["lake"]) else { return };
    let Some(packages) = python::packages(&PACKAGES) else { return };
    let spec = "  size: 2\n  tasks: 2\n  fluxRestful: {port: 5050}\n  containers: [{cores: 1}]\n";
    let mut side = Side::new(&world, &mini_cluster("lake", spec), &Context::default(), &certificate());
    side.mounts.push((packages, "/packages".to_owned()));
    let prefix = world.install.prefix.display();
    // As its image would have them: the bindings where its Python finds them. The rest is in the Secret.
    let environment = [
        ("PYTHONPATH", format!("{prefix}/lib/python3.11/site-packages:/packages")),
        ("FLUX_USER", "flux".to_owned()),
        ("FLUX_TOKEN", "s3cret".to_owned()),
        ("FLUX_SECRET_KEY", "shared".to_owned()),
    ];
    side.environment.extend(environment.map(|(name, value)| (name.to_owned(), value)));
    let mut pods = side.start_all(2);
    pods.iter().for_each(wait_until_ready);
    pods[0].wait_for_log("Uvicorn running on").unwrap();

    let ask = |pod: &Pod<'_>, client: &str, token: &str| {
        let line = format!("FLUX_TOKEN={token} FLUX_RESTFUL_HOST=http://localhost:5050 python3 -c \"$0\" {client}");
        pod.exec(&["bash", "-c", &line, CLIENT])
    };
    for client in ["flux_restful.client", "flux_restful_client"] {
        let said = ask(&pods[0], client, "s3cret").unwrap();
        assert_eq!(said, "end 0\nline lake-0\nline lake-1\nend 1", "{client}");
    }
    // Flux itself knows them.
    let jobs = super::scripts::flux(&pods[0], "flux jobs -a -no '{name} {status_abbrev} {returncode}'");
    assert_eq!(jobs.lines().collect::<Vec<_>>(), ["false F 1", "hostname CD 0"].repeat(2));
    assert!(ask(&pods[0], "flux_restful.client", "guessed").is_err(), "the wrong token is as good as the right one");

    // Like any command of the lead's, it ends when its pod does.
    pods[0].terminate().unwrap();
}
