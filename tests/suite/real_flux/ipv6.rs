//! Clusters without IPv4.

use std::path::PathBuf;

use tributary::render::{Context, Ends};

use super::install::Install;
use super::scripts::{Side, burst_of, certificate, flux, mini_cluster, wait_until_ready};
use super::world::World;

const LAKE: &str = "
  size: 2
  interactive: true
  containers: [{cores: 2}]
  flux: {bursting: {network: {type: TYPE}, clusters: [{size: 3, cores: 2}]}}
";

fn world() -> Option<World> {
    let install = Install::find().unwrap()?;
    Some(World::of_ipv6(install, &["lake", "lake-burst-0"]).unwrap())
}

#[test]
fn an_instance_spans_clusters_that_have_no_ipv4() {
    let Some(world) = world() else { return };
    let (lake, certificate) = (mini_cluster("lake", &LAKE.replace("TYPE", "NodePort")), certificate());
    let root = Side::new(&world, &lake, &Context::default(), &certificate).start_all(2);
    wait_until_ready(&root[0]);
    let _way = world.relay("lake-burst-0", root[0].address).unwrap();
    let burst = burst_of(&world, &lake, &certificate).start_all(3);
    burst.iter().for_each(wait_until_ready);
    assert_eq!(flux(&root[0], "flux run -N5 hostname | sort -u | wc -l"), "5");
}

#[test]
fn an_end_of_the_tunnel_listens_where_the_agent_dials_the_pod() {
    let Some(world) = world() else { return };
    let lake = mini_cluster("lake", &LAKE.replace("TYPE", "Tunnel"));
    let context = Context { ends: Ends::new(b"the program itself is mounted".to_vec()), ..Context::default() };
    let mut side = Side::new(&world, &lake, &context, &certificate());
    let program = PathBuf::from(env!("CARGO_BIN_EXE_ends"));
    side.mounts.push((program, "/flux_operator_ends/tributary-ends".to_owned()));
    let root = side.start_all(2);
    wait_until_ready(&root[0]);
    for port in [8050, 8051] {
        flux(&root[0], &format!(": >'/dev/tcp/{}/{port}'", root[0].address));
    }
}
