//! What rendering makes of the corpus, judged by a real API server.

use kube::api::{Api, PostParams};
use tributary::api::minicluster::MiniCluster;
use tributary::render::{Context, Rendered, render};
use tributary_tests::corpus::documents;
use tributary_tests::scenario::Place;

use crate::shared::{places, together};

#[tokio::test(flavor = "multi_thread")]
async fn the_api_server_takes_every_object_that_is_rendered() {
    let federation = together().await;
    let [east, ..] = places(&federation, "rendered").await;
    let (mut wrong, mut taken) = (Vec::new(), 0);
    for document in documents().unwrap() {
        let mut mini_cluster: MiniCluster = serde_json::from_value(document.value).unwrap();
        mini_cluster.metadata.namespace = Some(east.namespace.clone());
        mini_cluster.metadata.uid = Some("7d5e1b1c-0000-4000-8000-000000000000".to_owned());
        let Ok(rendered) = render(&mini_cluster, &Context::default()) else { continue };
        wrong.extend(refused(&east, &rendered).await.into_iter().map(|error| format!("{}: {error}", document.file)));
        taken += 1;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(taken > 80, "only {taken} files of the corpus were rendered");
}

/// What the API server says against these objects, in a dry run.
async fn refused(place: &Place, rendered: &Rendered) -> Vec<kube::Error> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut errors = Vec::new();
    let (client, namespace) = (&place.client, place.namespace.as_str());
    errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, &rendered.config_map).await.err());
    errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, &rendered.job).await.err());
    for service in &rendered.services {
        errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, service).await.err());
    }
    if let Some(pod) = &rendered.service_pod {
        errors.extend(Api::namespaced(client.clone(), namespace).create(&dry_run, pod).await.err());
    }
    errors
}
