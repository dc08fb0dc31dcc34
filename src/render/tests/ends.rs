//! The ends of the tunnel: in which pods they are.

use super::*;

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
        assert!(mounts.iter().any(|mount| mount.mount_path == "/flux_operator_ends" && mount.read_only == Some(true)));
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
    let direct = lake("  size: 2\n  containers: [{cores: 2}]\n  flux: {bursting: {clusters: [{size: 3, cores: 2}]}}\n");
    assert!(render(&direct, &Context { ends: program(), ..Context::default() }).unwrap().ends.is_none(), "by NodePort");
    let own = "  size: 2\n  containers: [{cores: 2}]\n  flux: {brokerConfig: '[bootstrap]', bursting: {network: {type: \
               Tunnel}, clusters: [{size: 3, cores: 2}]}}\n";
    let own = render(&lake(own), &Context { ends: program(), ..Context::default() }).unwrap();
    assert!(own.ends.is_none(), "a broker.toml of the user's own");
}
