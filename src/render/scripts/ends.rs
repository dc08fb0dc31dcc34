//! How the ends of the tunnel are started in the pods that need them.

use tributary_flux::Topology;

use super::AS_IT_IS;
use super::template::settings;
use super::user::User;
use super::words;
use crate::flux_files::BROKER_PORT;
use crate::model::{Model, Role};

/// TCP port of an end: in the lead's pod at the pod's address, and in pods of bursts at 127.0.0.1.
pub const ENDS_PORT: u16 = BROKER_PORT + 1;

const ENDS: &str = include_str!("ends.sh");
const LEAD: &str = include_str!("ends_lead.sh");
const BURST: &str = include_str!("ends_burst.sh");

/// Starts them, before the broker.
pub(super) fn start(model: &Model<'_>) -> String {
    if !model.has_ends() {
        return String::new();
    }
    let user = if User::of(model.runner.container).is_some() { String::new() } else { format!("{AS_IT_IS}\n") };
    let (hold, port) = (model.context.lease.as_secs().to_string(), ENDS_PORT.to_string());
    let mut values = settings([("_ends_hold", hold.as_str()), ("_ends_port", &port)]);
    let here = match &model.role {
        Role::Root => {
            values += &settings([("_broker_port", BROKER_PORT.to_string().as_str())]);
            LEAD
        }
        Role::Burst { host, port } => {
            values += &settings([("_lead", format!("{host}:{port}").as_str())]);
            // Not quoted: a pattern.
            let index = if model.topology == Topology::Gateway { "0" } else { "*" };
            values += &format!("_gateways={}-{index}\n", words::quote(model.name));
            BURST
        }
    };
    [&user, &values, ENDS, here].concat()
}

/// Before each start of a broker that may need one.
pub(super) fn find(model: &Model<'_>) -> &'static str {
    if model.has_ends() && matches!(model.role, Role::Burst { .. }) { "        _find_ends\n        " } else { "" }
}

#[cfg(test)]
mod tests {
    use tributary_api::minicluster::MiniCluster;

    use crate::tests::lake;
    use crate::{Context, Ends, HostedSide, Rendered, ends, rank_map_of, render};

    /// A root with a burst by tunnel, and that burst as its provider makes it.
    fn by_tunnel(fields: &str, ends: Option<Ends>) -> [Rendered; 2] {
        let spec = format!(
            "{{metadata: {{name: river, namespace: waters, uid: u}}, spec: {{size: 2, containers: [{{image: app, cores: 2}}], \
             {fields} flux: {{bursting: {{network: {{type: Tunnel}}, clusters: [{{name: lake, size: 3, cores: 2}}]}}}}}}}}"
        );
        let root: MiniCluster = serde_saphyr::from_str(&spec).unwrap();
        let context = Context { ends, ..Context::default() };
        let rank_map = rank_map_of(&root).unwrap();
        let (slot, lead_service, lead_port) = ("lake".to_owned(), "lake-lead".to_owned(), 8050);
        let hosted = Some(HostedSide { rank_map, slot, lead_service, lead_port });
        let burst = lake(&format!(
            "  size: 3\n  containers: [{{image: app, cores: 2}}]\n  {}\n",
            fields.trim_end_matches([',', ' '])
        ));
        [render(&root, &context).unwrap(), render(&burst, &Context { hosted, ..context.clone() }).unwrap()]
    }

    #[test]
    fn the_ends_of_the_tunnel_are_in_pods_that_need_them_and_pods_start_without_them() {
        let program = || Ends::new(b"\x7fELF".to_vec());
        for (rendered, (host, start)) in by_tunnel("", program()).iter().zip([("river", "lead"), ("lake", "burst")]) {
            let mut owner = lake("");
            owner.metadata.name = Some(host.to_owned());
            let map = ends(&owner, rendered.ends.as_ref().unwrap());
            assert_eq!(map.metadata.name.as_deref(), Some(format!("{host}-ends").as_str()));
            assert_eq!(map.binary_data.as_ref().unwrap()["tributary-ends"].0, b"\x7fELF");
            assert!(map.metadata.owner_references.is_some(), "it goes with the MiniCluster");
            let labels = map.metadata.labels.as_ref().unwrap();
            assert!(!labels.contains_key("app.kubernetes.io/managed-by"), "agents would list it: {labels:?}");
            let pod = rendered.job.spec.as_ref().unwrap().template.spec.as_ref().unwrap();
            let volume = pod.volumes.iter().flatten().find(|volume| volume.name == "flux-ends").unwrap();
            let source = volume.config_map.as_ref().unwrap();
            assert_eq!((source.optional, source.items.as_ref().unwrap()[0].mode), (Some(true), Some(0o555)));
            let mounts = pod.containers[0].volume_mounts.as_ref().unwrap();
            assert!(
                mounts.iter().any(|mount| mount.mount_path == "/flux_operator_ends" && mount.read_only == Some(true))
            );
            let script = &rendered.boot.files["wait-0"];
            assert!(script.contains(&format!("_start_ends {start} ")), "{script}");
            assert_eq!(script.contains("        _find_ends\n"), start == "burst", "the root's brokers find each other");
        }
        for (case, fields, ends) in
            [("no program", "", None), ("the node's network", "pod: {hostNetwork: true},", program())]
        {
            for rendered in by_tunnel(fields, ends.clone()) {
                let text = serde_json::to_string(&rendered.job).unwrap() + &rendered.boot.files["wait-0"];
                assert!(rendered.ends.is_none() && !text.contains("_ends"), "{case}");
            }
        }
        let direct =
            lake("  size: 2\n  containers: [{cores: 2}]\n  flux: {bursting: {clusters: [{size: 3, cores: 2}]}}\n");
        assert!(
            render(&direct, &Context { ends: program(), ..Context::default() }).unwrap().ends.is_none(),
            "by NodePort"
        );
        let own = "  size: 2\n  containers: [{cores: 2}]\n  flux: {brokerConfig: '[bootstrap]', bursting: {network: {type: \
                   Tunnel}, clusters: [{size: 3, cores: 2}]}}\n";
        let own = render(&lake(own), &Context { ends: program(), ..Context::default() }).unwrap();
        assert!(own.ends.is_none(), "a broker.toml of the user's own");
    }
}
