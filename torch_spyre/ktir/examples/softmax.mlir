// SPDX-License-Identifier: Apache-2.0
// Softmax over 64 rows of 64 elements on 8 compute tiles, 8 rows at once, with reductions into an unfilled tensor.empty.

#matrix = affine_set<(d0, d1) : (d0 >= 0, -d0 + 63 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#tile = affine_set<(d0, d1) : (d0 >= 0, -d0 + 7 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#order = affine_map<(d0, d1) -> (d0, d1)>

func.func @softmax(%input: index, %output: index) attributes {grid = [8 : index]} {
  %zero = arith.constant 0 : index
  %rows = arith.constant 8 : index
  %id = ktdp.get_compute_tile_id : index
  %first = arith.muli %id, %rows : index
  %X = ktdp.construct_memory_view %input, sizes: [64, 64], strides: [64, 1] {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<64x64xf16>
  %Y = ktdp.construct_memory_view %output, sizes: [64, 64], strides: [64, 1] {coordinate_set = #matrix, memory_space = #ktdp.memory_space<global>} : memref<64x64xf16>
  %xt = ktdp.construct_access_tile %X[%first, %zero] {access_tile_set = #tile, access_tile_order = #order} : memref<64x64xf16> -> <8x64xindex>
  %yt = ktdp.construct_access_tile %Y[%first, %zero] {access_tile_set = #tile, access_tile_order = #order} : memref<64x64xf16> -> <8x64xindex>
  %v = ktdp.load %xt : <8x64xindex> -> tensor<8x64xf16>
  %column = tensor.empty() : tensor<8xf16>
  %wide = tensor.empty() : tensor<8x64xf16>
  %peak = linalg.reduce { arith.maxnumf } ins(%v : tensor<8x64xf16>) outs(%column : tensor<8xf16>) dimensions = [1]
  %peaks = linalg.broadcast ins(%peak : tensor<8xf16>) outs(%wide : tensor<8x64xf16>) dimensions = [1]
  %shifted = linalg.sub ins(%v, %peaks : tensor<8x64xf16>, tensor<8x64xf16>) outs(%wide : tensor<8x64xf16>) -> tensor<8x64xf16>
  %power = linalg.exp ins(%shifted : tensor<8x64xf16>) outs(%wide : tensor<8x64xf16>) -> tensor<8x64xf16>
  %sum = linalg.reduce { arith.addf } ins(%power : tensor<8x64xf16>) outs(%column : tensor<8xf16>) dimensions = [1] -> tensor<8xf16>
  %sums = linalg.broadcast ins(%sum : tensor<8xf16>) outs(%wide : tensor<8x64xf16>) dimensions = [1]
  %out = linalg.div ins(%power, %sums : tensor<8x64xf16>, tensor<8x64xf16>) outs(%wide : tensor<8x64xf16>) -> tensor<8x64xf16>
  ktdp.store %out, %yt : tensor<8x64xf16>, <8x64xindex>
  return
}
