//! Clusters as agents of releases have left them, with a burst that runs: today's agents take them over.
//!
//! `tests/released/VERSION` has the API server of the root, and that of the provider, as documents. Nothing of a release is ever
//! made anew. Before a release, `NEW_RELEASE=1 cargo test --locked -p tributary-tests --test worlds released::` makes those of this
//! version, if there are none.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt as _;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tributary::api::burst::Burst;
use tributary::api::flux_job::FluxJob;
use tributary::api::flux_setup::FluxSetup;
use tributary::api::hosted_burst::HostedBurst;
use tributary::api::minicluster::MiniCluster;
use tributary::api::{labels, names};
use tributary_api_server::Backup;
use tributary_cluster::apply::Appliable;

use crate::agent::Settings;
use crate::cluster::{USERS, put};
use crate::dangers::{SHORT, in_world, secs};
use crate::world::World;

/// A lease that outlasts the time between both agents.
const LONG: Settings = Settings { times: (300, 60, 30), ..SHORT };

/// How long clusters run before they are kept.
const RUNS: u64 = 60;

fn kept() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("released")
}

/// One object of each of our kinds, and all that belongs to it.
async fn live(world: &mut World) -> Result<(), String> {
    let metadata = |name: &str| json!({"name": name, "namespace": USERS});
    let server = world.clusters[0].server.clone();
    put::<FluxSetup>(&server, json!({"metadata": metadata("default"), "spec": {"quota": {"brokers": 9}}}));
    let job = json!({"image": "example.org/image", "command": "sleep 9000"});
    put::<FluxJob>(&server, json!({"metadata": metadata("errand"), "spec": job}));
    world.apply(0, "lake", 1, json!([{"size": 1, "maxSize": 2, "peer": "west"}]), "NodePort");
    world.run(secs(RUNS)).await?;
    assert!(world.bursts_ready(0, "lake"), "{}", world.summary());
    Ok(())
}

fn keep(version: &Path) {
    if version.join("east.json").exists() {
        return;
    }
    let version = version.to_owned();
    in_world(2, LONG, async move |world| {
        live(world).await?;
        (0..2).for_each(|cluster| world.kill(cluster, 0));
        std::fs::create_dir_all(&version).unwrap();
        for cluster in &world.clusters {
            let mut document = cluster.server.backup().document();
            // What nobody goes by.
            let objects = document["objects"].as_array_mut().unwrap();
            objects.retain(|entry| entry["resource"] != "events");
            let lines: Vec<String> = objects.iter().map(Value::to_string).collect();
            let text = format!("{{\"version\":{},\"objects\":[\n{}\n]}}\n", document["version"], lines.join(",\n"));
            std::fs::write(version.join(format!("{}.json", cluster.name)), text).unwrap();
        }
        Ok(())
    });
}

/// Those that run, by the UIDs of what must stay.
fn running(world: &World) -> BTreeSet<String> {
    let uids = |cluster: usize| {
        let cluster = &world.clusters[cluster];
        let (jobs, pods, hosted) = (cluster.jobs(), cluster.pods(), cluster.hosted());
        let jobs = jobs.iter().filter_map(|job| job.uid());
        let pods = pods.iter().filter_map(|pod| pod.uid());
        let hosted = hosted.iter().filter_map(|one| one.uid());
        jobs.chain(pods).chain(hosted).collect::<Vec<_>>()
    };
    (0..2).flat_map(uids).collect()
}

/// Boot files and certificates.
fn files(world: &World) -> Vec<Option<Value>> {
    let of = |cluster: usize| {
        let server = world.clusters[cluster].server.clone();
        let maps =
            server.list::<ConfigMap>().into_iter().filter(|map| map.metadata.namespace.as_deref() == Some(USERS));
        let maps = maps.map(|map| serde_json::to_value(map.data).ok());
        let secrets = server.list::<Secret>().into_iter().map(|secret| serde_json::to_value(secret.data).ok());
        maps.chain(secrets).collect::<Vec<_>>()
    };
    (0..2).flat_map(of).collect()
}

/// What is said of them, but for what goes by the clock.
fn statuses(world: &World) -> Vec<String> {
    fn of<K: Appliable>(world: &World, cluster: usize) -> Vec<String> {
        let server = &world.clusters[cluster].server;
        let names = server.list::<K>().into_iter().map(|object| object.meta().name.clone().unwrap_or_default());
        let status = |name: String| {
            let mut status = server.stored::<K>(USERS, &name).unwrap()["status"].take();
            // What an agent of before did not record, too.
            for part in ["spent", "burstsSpent", "used", "frozen"] {
                status.as_object_mut().unwrap().remove(part);
            }
            format!("{} {name}: {status:#}", K::kind(&()))
        };
        names.map(status).collect()
    }
    let each =
        |cluster| [of::<MiniCluster>(world, cluster), of::<Burst>(world, cluster), of::<HostedBurst>(world, cluster)];
    (0..2).flat_map(each).flatten().collect()
}

fn take_over(version: PathBuf) {
    in_world(2, LONG, async move |world| {
        // What was used before is not known here.
        world.accounts = None;
        for cluster in 0..2 {
            world.kill(cluster, 0);
            let path = version.join(format!("{}.json", world.clusters[cluster].name));
            let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            world.clusters[cluster].server.restore(Backup::of(&serde_json::from_str(&text).unwrap()));
        }
        // The clocks go on from there, and a new image is pulled.
        tokio::time::sleep(secs(RUNS + 30)).await;
        let (before, brought, said) = (running(world), files(world), statuses(world));
        (0..2).for_each(|cluster| world.start(cluster, 0));
        world.run(secs(60)).await?;
        assert!(world.bursts_ready(0, "lake"), "{}", world.summary());
        assert_eq!(running(world), before, "something was started anew: {}", world.writes().join("\n"));
        assert_eq!(files(world), brought, "files changed under what runs");
        let touched = |line: &&String| {
            let words: Vec<&str> = line.split(' ').collect();
            ["create", "update", "patch", "delete"].contains(&words[2])
                && ["jobs/", "pods/", "secrets/", "configmaps/", "miniclusters/"]
                    .iter()
                    .any(|kind| words[3].starts_with(kind))
                && words[1].starts_with("tributary")
                // Its record of what is used is of the agent itself.
                && words[1] != labels::manager::USAGE
                && words.get(4) != Some(&"status")
        };
        let writes = world.writes();
        let touched: Vec<&String> = writes.iter().filter(touched).collect();
        assert!(touched.is_empty(), "written to what runs: {touched:#?}");
        for (said, says) in said.iter().zip(statuses(world)) {
            assert_eq!(*said, says);
        }
        // They are its own from now on: what is taken from them comes back as it was.
        for (cluster, name) in [(0, "lake"), (1, "lake-burst-0")] {
            let (server, name) = (world.clusters[cluster].server.clone(), names::entrypoint(name));
            let map = |_: &World| server.get::<ConfigMap>(USERS, &name).and_then(|map| map.data);
            let before = map(world);
            server.delete::<ConfigMap>(USERS, &name, &DeleteParams::default()).unwrap();
            world.until("it is made again", secs(10), |world| map(world).is_some()).await?;
            assert_eq!(map(world), before);
        }
        let clusters = json!([{"size": 2, "maxSize": 2, "peer": "west"}]);
        let spec = json!({"spec": {"flux": {"bursting": {"clusters": clusters}}}});
        world.clusters[0].server.patch::<MiniCluster>(USERS, "lake", spec).unwrap();
        let grown = |world: &World| {
            let all = world.clusters[1].server.list::<HostedBurst>();
            world.bursts_ready(0, "lake") && all.iter().all(|hosted| hosted.spec.size == 2)
        };
        world.until("the burst has grown", secs(60), grown).await?;
        assert!(before.iter().all(|uid| running(world).contains(uid)));
        world.clusters[0].server.delete::<FluxJob>(USERS, "errand", &DeleteParams::default()).unwrap();
        world.delete(0, "lake");
        world.until("nothing is left", secs(120), World::nothing_left).await
    });
}

#[test]
fn todays_agents_take_over_what_releases_have_left() {
    let ours = kept().join(env!("CARGO_PKG_VERSION"));
    if std::env::var_os("NEW_RELEASE").is_some() {
        keep(&ours);
    }
    assert!(ours.exists(), "clusters of this version are not kept yet: NEW_RELEASE=1 keeps them");
    for version in std::fs::read_dir(kept()).unwrap() {
        take_over(version.unwrap().path());
    }
}
